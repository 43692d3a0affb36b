"""Scripts that try to get out, or to take everything: each ends alone, and nobody waits for it."""

import os
import signal
import time

import anyio
import msgspec
import pytest

from multitap.code.messages import (
    CallAnswer,
    CallAnswers,
    Run,
    ScriptCalls,
    ScriptDone,
    ScriptFailed,
    ScriptLimits,
)
from multitap.code.pool import ScriptPool
from multitap.errors import MultitapError
from multitap.results.aside import AT_A_TIME, fit
from multitap.results.cutting import Handle
from multitap.selectors import Selector
from tests.waiting import PATIENCE

SECRET = "hunter2-of-the-gateway"
LIMITS = ScriptLimits(seconds=0.3, memory=30_000_000, sleep=0.2, depth=100, calls=20, output=10_000)
SCRIPTS = {
    "the environment": "import os\nos.environ['TOKEN']",
    "the environment, by a function": "import os\nos.getenv('TOKEN')",
    "a file": "open('/proc/self/environ').read()",
    "a file, by a path": "from pathlib import Path\nPath('/etc/passwd').read_text()",
    "a folder": "import os\nos.listdir('/')",
    "a written file": "with open('/tmp/multitap-hostile', 'w') as f:\n    f.write('x')",
    "a removed file": "import os\nos.remove('/tmp/x')",
    "a process": "import subprocess\nsubprocess.run(['id'])",
    "a shell": "import os\nos.system('id')",
    "a socket": "import socket\nsocket.create_connection(('127.0.0.1', 80))",
    "a page": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1/')",
    "native code": "import ctypes\nctypes.string_at(0)",
    "an import by name": "__import__('os').environ",
    "importlib": "import importlib\nimportlib.import_module('socket')",
    "the classes of objects": "().__class__.__bases__[0].__subclasses__()",
    "the globals of a function": "def f():\n    pass\nf.__globals__['__builtins__']",
    "the frames": "import sys\nsys._getframe().f_back",
    "evaluated text": "eval(\"__import__('os').environ\")",
    "an endless loop": "while True:\n    pass",
    "a long sum": "sum(range(10**12))",
    "a long number": "10 ** 10 ** 10",
    "a long text": "'x' * 10**12",
    "a growing list": "x = []\nwhile True:\n    x.append('x' * 1000)",
    "a nested list": "x = []\nfor _ in range(10**7):\n    x = [x]\nx",
    "a deep recursion": "def f():\n    return f()\nf()",
    "deep brackets": "(" * 5000 + ")" * 5000,
    "endless output": "while True:\n    print('x' * 1000)",
    "a bad expression": "import re\nre.match(r'(a+)+$', 'a' * 100000 + 'b')\n'nothing'",
    "a long sleep": "import time\ntime.sleep(1000)",
    "endless calls": "while True:\n    tool()",
    "another function": "other_users_tool()",
    "a number without end": "10 ** 100_000",
    "a list in itself": "x = []\nx.append(x)\nx.clear()\n'nothing'",
    "a wide format": "f'{1:>{10 ** 10}}'",
    "a wide format, by a method": "'{:>99999999999}'.format(1)",
    "the class of a function, by a format": "'{0.__class__.__mro__}'.format(tool)",
    "a power": "pow(3, 10**300_000, 10**300_000 + 1)",
    "a swallowed end": "while True:\n    try:\n        1\n    except BaseException:\n        2",
    "errors of errors": "def f(e):\n    try:\n        raise e\n    except ValueError as g:\n"
    "        f(g)\nf(ValueError())",
    "thousands of calls at once": "import asyncio\n"
    "await asyncio.gather(*[tool(x=i) for i in range(10_000)])",
    "a large result": "'x' * 5_000_000",
    "large arguments": "tool(x='x' * 5_000_000)",
    "a wait without end": "import asyncio\nawait asyncio.sleep(10**9)",
    "sorting with a key that grows": "sorted(range(10**6), key=lambda n: 'x' * n)",
    "grouping everything with everything": "groups = {}\nfor n in range(10**7):\n"
    "    groups.setdefault(n % 7, []).append([n] * 100)",
    "every pair of every pair": "import itertools\n"
    "len(list(itertools.product(range(1000), repeat=4)))",
    "a replaced text that grows": "text = 'a'\nwhile True:\n    text = text.replace('a', 'aa')",
    "letters of many bytes": "text = chr(0x10ffff)\nwhile True:\n    text = text.upper() * 2",
    "half of a letter": "tool(x=chr(0xd800))\nraise ValueError('sent')",
    "a translation of many letters": "('ß' * 10**9).upper().casefold()",
    "a shift without end": "1 << 10**12",
    "a number of the machine and one more": "[0] * (2**63)",
    "a slice of a number without end": "'abc'[2**200:2**300] * 2**200",
    "decoded text that nests": "import json\njson.loads('[' * 10**6)",
    "encoded text that nests": "import json\nx = []\nfor _ in range(10**5):\n    x = [x]\n"
    "json.dumps(x)",
    "a long date": "import datetime\ndatetime.timedelta(days=10**18)",
    "a recursion of equal lists": "a, b = [], []\na.append(b)\nb.append(a)\nassert a != b",
    "a message to the gateway": "import sys\nsys.stdout.write('\\x00\\x00\\x00\\x01x')\n'nothing'",
}


async def watch_the_loop(lateness):
    """Note how late the loop is, as often as it can."""
    while True:
        began = time.monotonic()
        await anyio.sleep(0.005)
        lateness.append(time.monotonic() - began - 0.005)


async def run(process, code):
    report = await process.ask(Run(code=code, names=["tool"], servers=[], limits=LIMITS))
    while isinstance(report, ScriptCalls):
        answers = [CallAnswer(call.id, b'{"content":[]}') for call in report.calls]
        report = await process.ask(CallAnswers(answers))
    return report


async def test_no_script_gets_out_or_holds_up_the_gateway(monkeypatch):
    monkeypatch.setenv("TOKEN", SECRET)
    pool, lateness, reports = ScriptPool(), [], {}
    async with anyio.create_task_group() as group:
        group.start_soon(watch_the_loop, lateness)
        for name, code in SCRIPTS.items():
            with anyio.fail_after(PATIENCE):
                async with pool.process() as process:
                    reports[name] = await run(process, code)
                    process.is_clean = True
        group.cancel_scope.cancel()
    await pool.close()

    assert len(SCRIPTS) >= 30
    for name, report in reports.items():
        assert isinstance(report, ScriptFailed) or report.result in {b'"nothing"', b"null"}, name
        assert SECRET not in repr(report), name
        assert "root:" not in repr(report), name
    print(f"{len(SCRIPTS)} scripts; the loop was at most {max(lateness) * 1000:.0f} ms late")


async def test_the_process_has_no_environment_and_dies_alone():
    pool = ScriptPool()
    async with pool.process() as process:
        pid = process.pid
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - a few bytes
            environment = file.read()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(MultitapError, match="has ended"):
            await run(process, "1")
    async with pool.process() as process:
        report = await run(process, "1 + 1")
        process.is_clean = True
    await pool.close()

    assert b"=" not in environment.replace(b"LC_CTYPE=C.UTF-8", b"")
    assert report == ScriptDone("", b"2")


@pytest.mark.slow  # it takes its two seconds of processor time
async def test_values_that_are_small_only_in_the_engine_end_the_process():
    """A list of ten times one list, ten times over, has 10**9 entries for everybody else."""
    pool = ScriptPool()
    async with pool.process() as process:
        with pytest.raises(MultitapError, match="took too much"), anyio.fail_after(120):
            await run(process, "x = [0]\nfor _ in range(9):\n    x = [x] * 10\ntool(x=x)")
    await pool.close()


async def test_a_script_leaves_nothing_to_the_next():
    pool = ScriptPool()
    async with pool.process() as process:
        await run(process, "secret = 5\nsecret")
        report = await run(process, "secret")
        process.is_clean = True
    await pool.close()

    assert isinstance(report, ScriptFailed)
    assert "NameError" in report.reason


DOUBLING = " | ".join(["[@, @]"] * 40)
SELECTORS = [
    DOUBLING,
    "rows[*].rows[*]" * 5,
    "[" * 900 + "@" + "]" * 900,
    "(" * 900 + "@" + ")" * 900,
    "rows[].[@, @, @, @][].[@, @, @, @][].[@, @, @, @][].[@, @, @, @][]",
    "join('', rows[].to_string(@))",
    " | ".join(["to_string(@)"] * 60),
    " | ".join(["{a: @, b: @}"] * 30),
    "sort_by(rows, &to_string(@))",
    "max_by(rows, &to_number(id))",
    "rows[?contains(to_string(@), 'x')]",
    "map(&map(&[@, @], [@, @]), rows)",
    "rows[].rows[].rows[].rows[]",
    "reverse(sort(rows[].name))",
    "merge(rows[0], rows[1], rows[2])",
    "&@",
    "[&@, {a: &@}]",
    "`" + "[" * 1500 + "]" * 100 + "`",
    "rows[::-1] | [::-1] | [::-1]",
    "length(to_string(@)) > `" + "9" * 1500 + "`",
    "*.*.*.*.*.*",
    "rows[*].[*][*][*]",
    "jq:[range(infinite)]",
    "jq:[.rows[], .rows[]] | [., .] | tojson | [., .] | tojson",
    "jq:[.rows[] | [.id, .id, .id]] | [combinations]",
    "jq:[range(1e7)] | sort_by(-.) | group_by(. % 3)",
    'jq:import "daemon" as $settings {search: "/etc/docker"}; $settings',
]


@pytest.mark.timeout(300)  # many processes, each of which may use all of its time
@pytest.mark.parametrize(
    "selectors",
    [
        pytest.param(SELECTORS[::4], id="some"),
        pytest.param(SELECTORS, id="all", marks=pytest.mark.wide),
    ],
)
async def test_no_selector_holds_up_the_gateway(selectors):
    rows = [{"id": number, "name": f"name {number}"} for number in range(20_000)]
    raw = msgspec.json.encode({"structuredContent": {"rows": rows}, "content": []})
    lateness, limiter = [], anyio.CapacityLimiter(AT_A_TIME)
    async with anyio.create_task_group() as group:
        group.start_soon(watch_the_loop, lateness)
        for expression in selectors:
            with anyio.fail_after(PATIENCE):
                try:
                    selector = Selector(expression)
                except MultitapError:
                    continue
                shaped = await fit(raw, selector, 100_000, Handle("x"), limiter)

                assert len(shaped.shown) <= 200_000, expression
        group.cancel_scope.cancel()

    assert len(SELECTORS) >= 20
    print(f"{len(selectors)} selectors; the loop was at most {max(lateness) * 1000:.0f} ms late")
