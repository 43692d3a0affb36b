"""The picture of the packages in `docs/internals.md`, drawn from what they really import.

`python -m scripts.package_map` renews it. The graph is the one that the import rules are
checked on: grimp comes with import-linter.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import grimp

ROOT = "multitap"
PAGE = Path(__file__).parent.parent / "docs" / "internals.md"
PICTURE = PAGE.parent / "assets" / "packages.svg"
SHARED = "shared files"
"""Stands for the modules beside the packages, which every layer uses."""

_BOX, _HIGH, _GAP = 110, 36, 28
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" role="img" aria-labelledby="t" font-family="system-ui, sans-serif" font-size="14">
<title id="t">Which packages import which</title>
<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" \
orient="auto"><path d="M0 0 10 5 0 10z" fill="#475569"/></marker></defs>
<rect width="{width}" height="{height}" rx="12" fill="#f8fafc"/>"""

Stop = str | tuple[str, str, int]
"""What is in a row of the picture: a package, or the gap for an arrow that passes it."""
_TURNS = 8
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


def downward(graph: Graph) -> Graph:
    """The arrows that go down the layers of the import rules.

    A package may have rooms in several layers, as `cluster` has; it is drawn in its lowest.
    """
    rules = tomllib.loads((PAGE.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    layers = rules["tool"]["importlinter"]["contracts"][0]["layers"]
    row = {SHARED: len(layers)}
    for number, layer in enumerate(layers):
        for module in re.split(r"[ :|]+", layer):
            row[module.split(".")[1]] = number
    return {
        package: frozenset(used for used in uses if row.get(used, row[SHARED]) > row[package])
        for package, uses in graph.items()
        if package != SHARED
    } | {SHARED: frozenset()}


def skeleton(graph: Graph) -> Iterator[tuple[str, str]]:
    """The arrows that no way over other packages replaces."""
    below = {package: _below(graph, package) for package in graph}
    for package in sorted(graph, key=lambda one: (-len(below[one]), one)):
        for used in sorted(graph[package]):
            if not any(used in below[other] for other in graph[package] - {used}):
                yield package, used


def picture() -> str:
    """The arrows between the top packages as SVG: each row imports only from rows below it."""
    imports = grimp.build_graph(ROOT, exclude_type_checking_imports=True, cache_dir=None)
    graph = downward(between(imports, [one for one in rooms(imports) if "." not in one]))
    arrows = [*skeleton(graph)]
    level = {SHARED: 0}
    for package in sorted(graph, key=lambda one: len(_below(graph, one))):
        used = [level[other] for one, other in arrows if one == package]
        level.setdefault(package, 1 + max(used, default=0))
    chains = [_chain(one, other, level) for one, other in arrows]
    rows = _ordered(chains, level)
    width = max(_width(row) for row in rows) + _GAP
    place: dict[Stop, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        x = (width - _width(row) + _GAP) / 2
        for stop in row:
            half = _half(stop)
            place[stop] = (x + half, _GAP + number * (_HIGH + _GAP))
            x += 2 * half + _GAP
    lines = [_line([place[stop] for stop in chain]) for chain in chains]
    boxes = [_drawn_box(stop, *at) for stop, at in place.items() if isinstance(stop, str)]
    size = {"width": f"{width:g}", "height": len(rows) * (_HIGH + _GAP) + _GAP}
    return "\n".join([_HEAD.format(**size), *lines, *boxes, "</svg>\n"])


def _chain(start: str, end: str, level: Mapping[str, int]) -> list[Stop]:
    """An arrow as what it passes: a gap is kept open for it in every row between."""
    gaps = [(start, end, row) for row in range(level[start] - 1, level[end], -1)]
    return [start, *gaps, end]


def _ordered(chains: list[list[Stop]], level: Mapping[str, int]) -> list[list[Stop]]:
    """The rows from top to bottom, each in an order in which few arrows cross."""
    rows: list[list[Stop]] = [[] for _ in range(max(level.values()) + 1)]
    for package in sorted(level):
        rows[-1 - level[package]].append(package)
    for chain in chains:
        for stop in chain[1:-1]:
            rows[-1 - int(stop[2])].append(stop)
    beside: dict[Stop, list[Stop]] = {}
    for chain in chains:
        for one, other in pairwise(chain):
            beside.setdefault(one, []).append(other)
            beside.setdefault(other, []).append(one)
    for turn in range(_TURNS):
        at = {stop: (n + 0.5) / len(row) for row in rows for n, stop in enumerate(row)}
        for row in rows[:: 1 if turn % 2 else -1]:
            row.sort(key=lambda stop: fmean(at[one] for one in beside.get(stop, [stop])))
            at |= {stop: (n + 0.5) / len(row) for n, stop in enumerate(row)}
    return rows


def _half(stop: Stop) -> float:
    """Half of the width that a package, or the gap for an arrow, takes."""
    return _BOX / 2 if isinstance(stop, str) else 2


def _width(row: list[Stop]) -> float:
    return sum(2 * _half(stop) + _GAP for stop in row)


def _line(points: list[tuple[float, float]]) -> str:
    (x, y), *rest = points
    parts = [f"M{x:g} {y + _HIGH:g}"]
    y += _HIGH
    for number, (to_x, to_y) in enumerate(rest):
        middle = (y + to_y) / 2
        parts.append(f"C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {to_y:g}")
        x, y = to_x, to_y
        if number < len(rest) - 1:  # straight through the row
            y += _HIGH
            parts.append(f"V{y:g}")
    curve = "".join(parts)
    return f'<path d="{curve}" fill="none" stroke="#475569" marker-end="url(#a)"/>'


def _drawn_box(package: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x - _BOX / 2:g}" y="{y:g}" width="{_BOX}" height="{_HIGH}" rx="8"'
        f' fill="#dbeafe" stroke="#2563eb"/><text x="{x:g}" y="{y + _HIGH / 2 + 5:g}"'
        f' text-anchor="middle" fill="#0f172a">{package}</text>'
    )


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


def main() -> None:
    PICTURE.write_text(picture(), encoding="utf-8")
    sys.stderr.write(f"{PICTURE}: renewed\n")


if __name__ == "__main__":
    main()
