"""Reads scripts as models write them: what they await, and what the engine spells differently.

Rewritten parts keep their length, so that lines and columns stay true.
"""

import ast
import re
import textwrap
from collections.abc import Collection, Iterator
from typing import NamedTuple

PRELUDE = """\
def _spawn(awaitable, **_):
    return awaitable
async def _waited(awaitable, timeout=None):
    return await awaitable
"""
"""What `asyncio` has and the engine has not; run before each script."""
_STAND_INS = {"create_task": "_spawn", "ensure_future": "_spawn", "wait_for": "_waited"}
_GATHERS = frozenset({"gather", "wait", "shield", "as_completed", *_STAND_INS, "_spawn", "_waited"})
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\n(.*?)\n?```\s*\Z", re.DOTALL)

Place = tuple[int, int]
"""Where an expression begins and ends, in bytes."""


class Script(NamedTuple):
    """A script that the engine can run."""

    code: str
    lazy: frozenset[Place]
    """The calls whose results are awaited; all others are answered with a value at once."""


def read_script(text: str, servers: Collection[str] = ()) -> Script:
    """Prepare a script; one that cannot be parsed is left to the engine, which says why.

    Args:
        text: As the model wrote it.
        servers: Names that may stand for modules: `github.list_issues()`.
    """
    if (fenced := _FENCE.match(text)) is not None:
        text = fenced[1]
    text = textwrap.dedent(text)
    tree = _parse(text)
    if tree is None:
        return Script(text, frozenset())
    text = _with_result(_respelled(text, tree, frozenset(servers)))
    tree = _parse(text)
    return Script(text, frozenset() if tree is None else _awaited_calls(text, tree))


def _parse(text: str) -> ast.Module | None:
    try:
        # `return` and `await` outside a function are errors of the compiler, not of the parser
        return ast.parse(text)
    # the last two: it is nested too deeply for the parser
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Lines:
    """Turns the places of nodes into offsets in the encoded text."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        for line in text.encode().split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def place(self, node: ast.expr | ast.stmt) -> Place:
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return start, end


def _respelled(text: str, tree: ast.Module, servers: frozenset[str]) -> str:
    data, lines = bytearray(text.encode()), _Lines(text)
    bound = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="asyncio"), attr=attr) if attr in _STAND_INS:
                start, end = lines.place(node)
                data[start:end] = _STAND_INS[attr].encode().ljust(end - start)
            case ast.Attribute(value=ast.Name(id=name) as server) if (
                name in servers - bound and lines.place(node)[0] == lines.place(server)[0]
            ):
                # the tool behind `github.list_issues` is called `github_list_issues`
                data[lines.place(server)[1]] = ord("_")
            case ast.Delete(targets=[ast.Subscript(value=value, slice=key)]) if not isinstance(
                key, ast.Slice
            ):
                start, end = lines.place(node)
                (_, middle), inner = lines.place(value), lines.place(key)
                popping = (
                    data[lines.place(value)[0] : middle] + b".pop(" + data[inner[0] : inner[1]]
                )
                # `a.pop(b)` is exactly as long as `del a[b]`
                data[start:end] = (popping + b")").ljust(end - start)
            case ast.Delete(targets=[ast.Name()]):
                start, end = lines.place(node)
                data[start:end] = b"pass".ljust(end - start)
            case _:
                pass
    return data.decode()


def _with_result(text: str) -> str:
    """A script whose last statement is its result, also if that is an assignment."""
    tree = _parse(text)
    if tree is None or not tree.body:
        return text
    last = tree.body[-1]
    match last:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return f"{text.rstrip()}\n{name}"
        case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call) if any(
            isinstance(node, ast.AsyncFunctionDef) and node.name == name for node in tree.body
        ):
            # models end a script with `main()`, although it has to be awaited
            start, _ = _Lines(text).place(call)
            data = text.encode()
            return (data[:start] + b"await " + data[start:]).decode()
        case _:
            return text


def _awaited_calls(text: str, tree: ast.Module) -> frozenset[Place]:
    """The calls that are awaited: at once, later by a name, or in a gathering of several."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    names, functions = _awaited_names(tree)
    lines = _Lines(text)
    return frozenset(
        lines.place(call)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _is_awaited(call, parents, names, functions)
    )


def _awaited_names(tree: ast.Module) -> tuple[frozenset[str], frozenset[str]]:
    """The names of variables that hold something to await, and of functions that return it."""
    names, functions = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Await(value=ast.Name(id=name)):
                names.add(name)
            case ast.Await(value=ast.Call(func=ast.Name(id=name))):
                functions.add(name)
            case ast.Call() if _is_gathering(node):
                for inner in _gathered(node):
                    match inner:
                        case ast.Name(id=name):
                            names.add(name)
                        case ast.Call(func=ast.Name(id=name)):
                            functions.add(name)
                        case _:
                            pass
            case _:
                pass
    for node in ast.walk(tree):  # `for task in tasks: await task`
        match node:
            case (
                ast.For(target=ast.Name(id=name), iter=ast.Name(id=source))
                | ast.comprehension(target=ast.Name(id=name), iter=ast.Name(id=source))
            ) if name in names:
                names.add(source)
            case _:
                pass
    return frozenset(names), frozenset(functions)


def _is_gathering(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in _GATHERS
        case _:
            return False


def _gathered(call: ast.Call) -> Iterator[ast.expr]:
    """What a gathering is given, out of the lists and comprehensions around it."""
    waiting: list[ast.expr] = list(call.args)
    while waiting:
        match waiting.pop():
            case ast.Starred(value=value):
                waiting.append(value)
            case ast.ListComp(elt=value) | ast.GeneratorExp(elt=value) | ast.SetComp(elt=value):
                waiting.append(value)
            case ast.List(elts=values) | ast.Tuple(elts=values):
                waiting += values
            case value:
                yield value


def _is_awaited(
    call: ast.Call,
    parents: dict[ast.AST, ast.AST],
    names: frozenset[str],
    functions: frozenset[str],
) -> bool:
    node: ast.AST = call
    while (parent := parents.get(node)) is not None:
        match parent:
            case ast.Await():
                return node is call
            case ast.Call() if node is not parent.func:
                return _is_gathering(parent) or _is_append(parent, names)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                return name in names
            case ast.Return():
                return _function_of(parent, parents) in functions
            case (
                ast.Starred()
                | ast.List()
                | ast.Tuple()
                | ast.ListComp()
                | ast.GeneratorExp()
                | ast.SetComp()
                | ast.IfExp()
            ):
                node = parent
            case _:
                return False
    return False


def _is_append(call: ast.Call, names: frozenset[str]) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=name), attr="append"):
            return name in names
        case _:
            return False


def _function_of(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    """The name of the plain function around a node; an `async` one returns values."""
    while (parent := parents.get(node)) is not None:
        if isinstance(parent, ast.FunctionDef):
            return parent.name
        if isinstance(parent, ast.AsyncFunctionDef | ast.Lambda):
            return ""
        node = parent
    return ""
