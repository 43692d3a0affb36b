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
def classes():
    """File, name and number of methods of each class; no tree is kept, as collectors walk them."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return [
        (path, node.name, sum(isinstance(member, functions) for member in node.body))
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ClassDef)
    ]


def test_no_class_has_more_methods_than_one_can_keep_in_mind():
    counts = {f"{path.name}: {name}": count for path, name, count in classes() if name not in WIDE}

    assert {name for name, count in counts.items() if count > MOST_METHODS} == set()


def test_no_public_class_name_exists_twice():
    places = defaultdict(list)
    for path, name, _ in classes():
        if not name.startswith("_"):
            places[name].append(str(path.relative_to(SOURCE)))

    assert {name: where for name, where in places.items() if len(where) > 1} == {}
