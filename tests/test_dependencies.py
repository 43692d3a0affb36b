"""What the code imports, against what `pyproject.toml` declares."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
NOT_BY_NAME = {"uvloop"}
"""Used without an import of ours: anyio starts its loop."""
PARTS = {"pydantic-monty-client": "pydantic-monty", "numpy": "onnxruntime"}
"""Packages that others bring, whose modules are the point of those."""

project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@cache  # takes a second, and every worker imports this file
def packages_by_module():
    return {
        module: {
            PARTS.get(plain, plain)
            for plain in (re.sub(r"[-_.]+", "-", name).lower() for name in names)
        }
        for module, names in packages_distributions().items()
    }


def declared(requirements):
    names = (re.match(r"[A-Za-z0-9._-]+", requirement)[0] for requirement in requirements)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}


REQUIRED = declared(project["dependencies"])
OPTIONAL = (
    declared(name for names in project["optional-dependencies"].values() for name in names)
    - REQUIRED
    - {"multitap"}  # the extra for all names the others
)


@cache
def imported(path):
    """The packages, other than our own and Python's, that a file imports."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            modules |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return modules - sys.stdlib_module_names - {"multitap", "_multitap"}


def test_what_is_imported_is_declared():
    undeclared = {
        (str(path.relative_to(ROOT)), module)
        for path in SOURCES
        for module in imported(path)
        if not packages_by_module().get(module, set()) & (REQUIRED | OPTIONAL)
    }

    assert undeclared == set()


def test_what_is_declared_is_imported():
    modules = {module for path in SOURCES for module in imported(path)}
    used = {package for module in modules for package in packages_by_module()[module]}

    assert (REQUIRED | OPTIONAL) - used == NOT_BY_NAME


def test_only_what_has_an_extra_of_its_own_imports_what_is_optional():
    users = {
        path.parent.name
        for path in SOURCES
        for module in imported(path)
        if packages_by_module()[module] <= OPTIONAL
    }

    assert users == {"models", "cluster", "code", "search", "multitap"}
