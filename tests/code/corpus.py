# ruff: noqa: E501 - scripts are written as they are sent
"""Scripts as models write them, by a table of constructs, each with its expected result.

`TASKS` is written once for each way to call a tool; `CONSTRUCTS` is everything else. The tools are a
small shop: see `answer`. What does not run stays here.
"""

import itertools

ORDERS = [
    {"id": 1, "customer": "ada", "total": 120.5, "status": "open", "items": ["lamp", "desk"]},
    {"id": 2, "customer": "bob", "total": 20.0, "status": "paid", "items": ["pen"]},
    {"id": 3, "customer": "ada", "total": 75.25, "status": "open", "items": []},
    {"id": 4, "customer": "eve", "total": 300.0, "status": "cancelled", "items": ["sofa"]},
]


def answer(name, arguments):
    """What a tool of the shop returns; a `ValueError` is a failed call."""
    match name:
        case "shop_list_orders":
            status = arguments.get("status")
            return {"orders": [o for o in ORDERS if status in (None, o["status"])]}
        case "shop_get_order":
            for order in ORDERS:
                if order["id"] == arguments["id"]:
                    return order
            raise ValueError(f"no order {arguments['id']}")
        case "shop_cancel_order":
            return {"id": arguments["id"], "cancelled": True}
        case "notes_read-note":
            return f"note {arguments['title']}: call ada"
        case "clock_now":
            return {"now": "2026-11-18T12:00:00Z"}
    raise KeyError(name)


STYLES = {
    "keywords": lambda tool, arguments: f"{tool}({_keywords(arguments)})",
    "dict": lambda tool, arguments: f"{tool}({arguments!r})" if arguments else f"{tool}({{}})",
    "await keywords": lambda tool, arguments: f"await {tool}({_keywords(arguments)})",
    "await dict": lambda tool, arguments: f"await {tool}({arguments!r})",
    "call_tool": lambda tool, arguments: f"call_tool({tool!r}, {arguments!r})",
    "await call_tool": lambda tool, arguments: f"await call_tool({tool!r}, {arguments!r})",
}


class Variable(str):
    """An argument that is an expression."""

    __slots__ = ()

    def __repr__(self):
        return str(self)


def _keywords(arguments):
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


V = Variable
LIST = ("shop_list_orders", {"status": "open"})
ALL = ("shop_list_orders", {})
GET = ("shop_get_order", {"id": V("i")})
TASKS = [
    ("a field of each", "[o['id'] for o in ({0})['orders']]", [LIST], [1, 3]),
    ("a sum", "orders = ({0})['orders']\nsum(o['total'] for o in orders)", [LIST], 195.75),
    ("return", "orders = ({0})['orders']\nreturn len(orders)", [ALL], 4),
    ("print", "data = {0}\nprint(len(data['orders']), 'orders')", [ALL], "4 orders\n"),
    (
        "a loop over results",
        "out = []\nfor o in ({0})['orders']:\n    i = o['id']\n    d = {1}\n    out.append(d['customer'])\nout",
        [LIST, GET],
        ["ada", "ada"],
    ),
    (
        "group by",
        "from collections import defaultdict\ng = defaultdict(float)\nfor o in ({0})['orders']:\n    g[o['customer']] += o['total']\ndict(g)",
        [ALL],
        {"ada": 195.75, "bob": 20.0, "eve": 300.0},
    ),
    (
        "count",
        "from collections import Counter\nCounter(o['status'] for o in ({0})['orders']).most_common(1)[0][0]",
        [ALL],
        "open",
    ),
    ("the largest", "max(({0})['orders'], key=lambda o: o['total'])['id']", [ALL], 4),
    (
        "json",
        "import json\nprint(json.dumps([o['id'] for o in ({0})['orders']]))",
        [LIST],
        "[1, 3]\n",
    ),
    (
        "a condition",
        "orders = ({0})['orders']\nif len(orders) > 1:\n    result = 'many'\nelse:\n    result = 'few'\nresult",
        [LIST],
        "many",
    ),
    (
        "a failed call",
        "i = 99\ntry:\n    r = {0}\nexcept Exception as e:\n    r = 'failed: ' + str(e)\n'no order 99' in r",
        [GET],
        True,
    ),
    (
        "an async main",
        "import asyncio\nasync def main():\n    orders = {0}\n    return len(orders['orders'])\nawait main()",
        [ALL],
        4,
    ),
    (
        "asyncio.run",
        "import asyncio\nasync def main():\n    orders = {0}\n    print(len(orders['orders']))\nasyncio.run(main())",
        [ALL],
        "4\n",
    ),
    ("get with a default", "o = ({0})\no.get('missing', 'none')", [ALL], "none"),
    (
        "a write in a loop",
        "done = []\nfor i in [1, 3]:\n    done.append(({0})['cancelled'])\ndone",
        [("shop_cancel_order", {"id": V("i")})],
        [True, True],
    ),
    (
        "a name with a dash",
        "text = {0}\ntext.split(': ')[1]",
        [("notes_read_note", {"title": "a"})],
        "call ada",
    ),
    (
        "f-strings",
        "o = ({0})['orders'][0]\nf\"{{o['customer']}}: {{o['total']:.2f}}\"",
        [LIST],
        "ada: 120.50",
    ),
    (
        "sorting",
        "[o['id'] for o in sorted(({0})['orders'], key=lambda o: -o['total'])][:2]",
        [ALL],
        [4, 1],
    ),
    (
        "a date",
        "from datetime import datetime, timedelta\nn = ({0})['now']\nd = datetime.fromisoformat(n.replace('Z', '+00:00'))\n(d + timedelta(days=1)).date().isoformat()",
        [("clock_now", {})],
        "2026-11-19",
    ),
    ("an assignment at the end", "result = ({0})['orders'][0]['customer']", [LIST], "ada"),
    (
        "isinstance",
        "r = {0}\nif isinstance(r, dict):\n    r = r['orders']\nlen(r)",
        [ALL],
        4,
    ),
    ("unpacking", "first, *rest = ({0})['orders']\nlen(rest)", [ALL], 3),
    (
        "nested comprehensions",
        "sorted({{item for o in ({0})['orders'] for item in o['items']}})",
        [ALL],
        ["desk", "lamp", "pen", "sofa"],
    ),
    ("any and all", "any(o['total'] > 200 for o in ({0})['orders'])", [ALL], True),
]


def _cases():
    for (name, code, calls, expected), (style, write) in itertools.product(TASKS, STYLES.items()):
        if style in {"keywords", "dict", "call_tool"} and name == "async":
            continue
        written = [write(tool, arguments) for tool, arguments in calls]
        yield f"{name}, {style}", code.format(*written), expected


CONSTRUCTS = [
    (
        "gather of calls",
        "import asyncio\nr = await asyncio.gather(shop_get_order(id=1), shop_get_order(id=2))\n[o['customer'] for o in r]",
        ["ada", "bob"],
    ),
    (
        "gather of a comprehension",
        "import asyncio\nr = await asyncio.gather(*[shop_get_order(id=i) for i in (1, 2)])\n[o['id'] for o in r]",
        [1, 2],
    ),
    (
        "gather of a list",
        "import asyncio\ntasks = [shop_get_order(id=i) for i in (1, 2)]\nr = await asyncio.gather(*tasks)\nlen(r)",
        2,
    ),
    (
        "gather of appended calls",
        "import asyncio\ntasks = []\nfor i in (1, 2):\n    tasks.append(shop_get_order(id=i))\nr = await asyncio.gather(*tasks)\nlen(r)",
        2,
    ),
    (
        "gather of coroutines",
        "import asyncio\nasync def fetch(i):\n    o = await shop_get_order(id=i)\n    return o['total']\nsum(await asyncio.gather(*[fetch(i) for i in (1, 2, 3)]))",
        215.75,
    ),
    (
        "gather in main",
        "import asyncio\nasync def main():\n    a, b = await asyncio.gather(shop_list_orders(status='open'), clock_now())\n    return len(a['orders']), b['now'][:4]\nasyncio.run(main())",
        [2, "2026"],
    ),
    (
        "gather with exceptions",
        "import asyncio\nr = await asyncio.gather(shop_get_order(id=1), shop_get_order(id=99), return_exceptions=True)\nr[0]['id'], isinstance(r[1], Exception)",
        [1, True],
    ),
    (
        "create_task",
        "import asyncio\nt = asyncio.create_task(shop_get_order(id=1))\n(await t)['id']",
        1,
    ),
    (
        "tasks awaited in turn",
        "import asyncio\nts = [asyncio.create_task(shop_get_order(id=i)) for i in (1, 2)]\nout = []\nfor t in ts:\n    out.append((await t)['id'])\nout",
        [1, 2],
    ),
    (
        "wait_for",
        "import asyncio\n(await asyncio.wait_for(shop_get_order(id=1), timeout=5))['id']",
        1,
    ),
    ("a coroutine awaited later", "c = shop_get_order(id=2)\n(await c)['id']", 2),
    (
        "sync and async mixed",
        "a = shop_get_order(id=1)\nb = await shop_get_order(id=2)\na['id'] + b['id']",
        3,
    ),
    (
        "a sync helper",
        "def total(i):\n    return shop_get_order(id=i)['total']\ntotal(1) + total(2)",
        140.5,
    ),
    (
        "an async helper",
        "async def total(i):\n    return (await shop_get_order(id=i))['total']\nawait total(1)",
        120.5,
    ),
    ("map", "list(map(lambda i: shop_get_order(id=i)['customer'], [1, 2]))", ["ada", "bob"]),
    (
        "a dict comprehension",
        "{i: shop_get_order(id=i)['total'] for i in (1, 2)}",
        {"1": 120.5, "2": 20.0},
    ),
    (
        "a main guard",
        "def main():\n    print(shop_get_order(id=1)['id'])\nif __name__ == '__main__':\n    main()",
        "1\n",
    ),
    (
        "an early return",
        "o = shop_get_order(id=1)\nif o['status'] == 'open':\n    return 'open'\nreturn 'closed'",
        "open",
    ),
    (
        "return in a loop",
        "for i in (1, 2, 3):\n    if shop_get_order(id=i)['status'] == 'paid':\n        return i\nreturn None",
        2,
    ),
    ("a multi-line string", "text = '''a\n  b\n'''\nreturn text", "a\n  b\n"),
    (
        "comments and blank lines",
        "# count\n\norders = shop_list_orders()  # all\n\n# end\nlen(orders['orders'])",
        4,
    ),
    ("a docstring", '"""Counts orders."""\nlen(shop_list_orders()["orders"])', 4),
    (
        "type hints",
        "from typing import Any, Dict, List\norders: List[Dict[str, Any]] = shop_list_orders()['orders']\nlen(orders)",
        4,
    ),
    (
        "a class",
        "class Report:\n    def __init__(self):\n        self.lines = []\n    def add(self, x):\n        self.lines.append(x)\nr = Report()\nr.add(shop_get_order(id=1)['id'])\nr.lines",
        [1],
    ),
    (
        "a dataclass",
        "from dataclasses import dataclass\n@dataclass\nclass O:\n    id: int\nO(shop_get_order(id=1)['id']).id",
        1,
    ),
    ("match", "match shop_get_order(id=1):\n    case {'status': s}:\n        r = s\nr", "open"),
    ("a regular expression", "import re\nre.findall(r'\\d+', clock_now()['now'])[0]", "2026"),
    (
        "while",
        "i = 1\nwhile True:\n    if shop_get_order(id=i)['status'] == 'paid':\n        break\n    i += 1\ni",
        2,
    ),
    (
        "try, else, finally",
        "log = []\ntry:\n    shop_get_order(id=1)\nexcept Exception:\n    log.append('e')\nelse:\n    log.append('ok')\nfinally:\n    log.append('end')\nlog",
        ["ok", "end"],
    ),
    ("raise", "try:\n    raise ValueError('x')\nexcept ValueError as e:\n    r = str(e)\nr", "x"),
    ("the walrus", "if (n := len(shop_list_orders()['orders'])) > 3:\n    r = n\nr", 4),
    (
        "several prints",
        "for i in (1, 2):\n    print(i, shop_get_order(id=i)['customer'])",
        "1 ada\n2 bob\n",
    ),
    ("print and a value", "print('x')\n5", "x\n5"),
    ("math", "import math\nmath.ceil(shop_get_order(id=1)['total'])", 121),
    (
        "itertools",
        "import itertools\nlist(itertools.chain.from_iterable(o['items'] for o in shop_list_orders()['orders']))[:2]",
        ["lamp", "desk"],
    ),
    (
        "functools.reduce",
        "from functools import reduce\nreduce(lambda a, o: a + o['total'], shop_list_orders(status='open')['orders'], 0)",
        195.75,
    ),
    (
        "zip and enumerate",
        "[(n, a['id']) for n, a in enumerate(shop_list_orders()['orders'])][1]",
        [1, 2],
    ),
    ("slices", "shop_list_orders()['orders'][::2][1]['id']", 3),
    ("set operations", "sorted({1, 2} & {o['id'] for o in shop_list_orders()['orders']})", [1, 2]),
    (
        "a table",
        "rows = shop_list_orders()['orders']\nprint('\\n'.join(f\"{o['id']:>3} {o['customer']:<5}|\" for o in rows[:2]))",
        "  1 ada  |\n  2 bob  |\n",
    ),
    ("none", "shop_list_orders()\nNone", None),
    (
        "a nested function",
        "def outer():\n    n = 0\n    def inner():\n        nonlocal n\n        n += shop_get_order(id=1)['id']\n    inner()\n    return n\nouter()",
        1,
    ),
    ("global", "count = 0\ndef f():\n    global count\n    count += 1\nf()\ncount", 1),
    ("star arguments", "args = {'id': 2}\nshop_get_order(**args)['id']", 2),
    ("a positional argument", "shop_get_order(3)['id']", 3),
    ("del", "d = {'a': 1, 'b': 2}\ndel d['a']\nd", {"b": 2}),
    (
        "a generator",
        "def ids():\n    for o in shop_list_orders()['orders']:\n        yield o['id']\nlist(ids())",
        [1, 2, 3, 4],
    ),
    (
        "statistics",
        "import statistics\nstatistics.mean([o['total'] for o in shop_list_orders(status='open')['orders']])",
        97.875,
    ),
    ("search inside", "'shop_get_order' in search_tools('look up an order')", True),
    ("a list of tools", "for f in [clock_now]:\n    r = f()\nr['now'][:4]", "2026"),
    ("code fences", "```python\nlen(shop_list_orders()['orders'])\n```", 4),
    ("an indented script", "    x = clock_now()\n    x['now'][:4]", "2026"),
    ("a server's name as a module", "shop.get_order(id=1)['id']", 1),
    (
        "JSON text loaded again",
        "import json\nr = shop_get_order(id=1)\nif isinstance(r, str):\n    r = json.loads(r)\nr['id']",
        1,
    ),
    ("a string method chain", "clock_now()['now'].split('T')[0].replace('-', '/')", "2026/11/18"),
    ("a conditional expression", "'yes' if shop_get_order(id=1)['items'] else 'no'", "yes"),
]

CASES = [*_cases(), *CONSTRUCTS]
