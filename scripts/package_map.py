"""The picture of the packages in `docs/internals.md`, drawn from what they really import.

`python -m scripts.package_map` renews the page. The graph is the one that the import rules are
checked on: grimp comes with import-linter.
"""

import sys
from ast import get_docstring, parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import grimp

ROOT = "multitap"
PAGE = Path(__file__).parent.parent / "docs" / "internals.md"
BEGIN = "<!-- packages: `make map` renews all down to the end mark -->"
END = "<!-- packages: end -->"
SHARED = "shared files"
"""Stands for the modules beside the packages, which every layer uses."""

Graph = Mapping[str, frozenset[str]]
"""What each package imports directly."""


def rooms(imports: grimp.ImportGraph) -> list[str]:
    """All packages, each before the rooms in it, named as in the tree."""
    packages = {module for module in imports.modules if _file(module).name == "__init__.py"}
    return sorted(package.removeprefix(f"{ROOT}.") for package in packages if package != ROOT)


def room_of(module: str, packages: Iterable[str]) -> str:
    """The innermost package that a module is in."""
    path = module.removeprefix(f"{ROOT}.")
    inside = [one for one in packages if path == one or path.startswith(f"{one}.")]
    return max(inside, key=len, default=SHARED)


def between(imports: grimp.ImportGraph, packages: Iterable[str]) -> Graph:
    """Which of the packages import which others; what is in none of them is shared.

    The root is left out, and so is `__main__`: both are doors, and lead to the top.
    """
    packages = frozenset(packages)
    found: dict[str, set[str]] = {package: set() for package in packages}
    for module in imports.modules - {ROOT, f"{ROOT}.__main__"}:
        home = room_of(module, packages)
        used = imports.find_modules_directly_imported_by(module) - {ROOT}
        found.setdefault(home, set()).update(room_of(one, packages) for one in used)
    return {package: frozenset(used - {package}) for package, used in found.items()}


def skeleton(graph: Graph) -> Iterator[tuple[str, str]]:
    """The arrows that no way over other packages replaces."""
    below = {package: _below(graph, package) for package in graph}
    for package in sorted(graph, key=lambda one: (-len(below[one]), one)):
        for used in sorted(graph[package]):
            if not any(used in below[other] for other in graph[package] - {used}):
                yield package, used


def drawn() -> str:
    """What belongs between the marks."""
    imports = grimp.build_graph(ROOT, exclude_type_checking_imports=True, cache_dir=None)
    packages = rooms(imports)
    top = between(imports, [one for one in packages if "." not in one])
    arrows = [f"    {_node(one)} --> {_node(other)}" for one, other in skeleton(top)]
    inner = between(imports, packages)
    rows = [f"| `{_path(one)}` | {_purpose(one)} | {_listed(inner[one])} |" for one in packages]
    return "\n".join(
        [
            "```mermaid",
            "graph TD",
            *arrows,
            "```",
            "",
            "| package | is for | imports directly |",
            "|---|---|---|",
            *rows,
        ]
    )


def renewed(page: str) -> str:
    """The page with the picture as it has to be now."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{drawn()}\n\n{END}{tail}"


def _below(graph: Graph, package: str) -> set[str]:
    seen: set[str] = set()
    left = [*graph.get(package, ())]
    while left:
        if (one := left.pop()) not in seen:
            seen.add(one)
            left += graph.get(one, ())
    return seen


def _file(module: str) -> Path:
    place = PAGE.parent.parent / "src" / Path(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _purpose(package: str) -> str:
    """The first line of its map."""
    text = get_docstring(parse(_file(f"{ROOT}.{package}").read_text(encoding="utf-8")))
    return (text or "").partition("\n")[0].rstrip(".")


def _path(package: str) -> str:
    return package.replace(".", "/") + "/"


def _node(package: str) -> str:
    return f'shared(["{SHARED}"])' if package == SHARED else package


def _listed(used: Iterable[str]) -> str:
    """What is imported; the shared files go without saying."""
    return ", ".join(f"`{one.replace('.', '/')}`" for one in sorted({*used} - {SHARED})) or "-"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(renewed(page), encoding="utf-8")
    sys.stderr.write(f"{PAGE}: renewed\n")


if __name__ == "__main__":
    main()
