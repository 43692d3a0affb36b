"""The house rules that a script can check: no class that does everything, no name twice."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import multitap

SOURCE = Path(multitap.__file__).parent
MOST_METHODS = 24
WIDE = {
    "BaseEnvironment": "what subclasses and hosts may call, as its design names it",
    "Control": "the control protocol: one method for each of its questions and actions",
    "ControlService": "the same, answered",
}
"""Classes that are an interface of many small methods."""


@cache  # parsed where a test asks: every worker imports this file, and one of them runs it
def modules():
    return {path: ast.parse(path.read_bytes()) for path in sorted(SOURCE.rglob("*.py"))}


def classes():
    return [
        (path, node)
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def test_no_class_has_more_methods_than_one_can_keep_in_mind():
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    counts = {
        f"{path.name}: {node.name}": sum(isinstance(one, functions) for one in node.body)
        for path, node in classes()
        if node.name not in WIDE
    }

    assert {name for name, count in counts.items() if count > MOST_METHODS} == set()


def test_no_public_class_name_exists_twice():
    places = defaultdict(list)
    for path, node in classes():
        if node.name.startswith("_"):
            continue
        places[node.name].append(str(path.relative_to(SOURCE)))

    assert {name: where for name, where in places.items() if len(where) > 1} == {}
