"""The house rules that a script can check: one place, one name, no class that does everything."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import multitap

SOURCE = Path(multitap.__file__).parent
MOST_METHODS = 20
ENTRY_POINTS = frozenset({"__init__", "__main__"})


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
    }

    assert {name for name, count in counts.items() if count > MOST_METHODS} == set()


def test_no_class_name_exists_twice():
    places = defaultdict(list)
    for path, node in classes():
        places[node.name].append(str(path.relative_to(SOURCE)))

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_module_is_known_by_its_name_without_its_folder():
    places = defaultdict(list)
    for path in modules():
        if path.stem not in ENTRY_POINTS:
            places[path.stem].append(str(path.relative_to(SOURCE)))

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


PARTICIPLES = frozenset(
    {
        # documented names
        *("settled", "scanned", "connected", "narrowed", "capped", "structured", "sifted"),
        # values in other words, as `sorted` is one
        *("quoted", "shortened", "counted", "masked", "ungrouped"),
        # what a rule or a table says of an entry
        *("trusted", "unsupported"),
    }
)
"""Names that would say less if they were verbs."""


def test_a_function_is_named_by_what_it_does():
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    bodies = [tree.body for tree in modules().values()] + [node.body for _, node in classes()]
    named_so = {
        f"{node.name} ({node.lineno})"
        for body in bodies
        for node in body
        if isinstance(node, functions)
        and not node.decorator_list
        and ast.unparse(node.returns or ast.Constant(None)) != "bool"
        and (word := node.name.strip("_")).endswith("ed")
        and "_" not in word
        and word not in PARTICIPLES | {"feed", "heed", "seed", "shed", "speed"}
    }

    assert named_so == set()
