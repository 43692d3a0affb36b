"""The pages of the documentation site, and the check of what was built from them.

`make docs` runs `gather`, then zensical, then `finish`. On the forge, pages link to files of the
repository, such as an example; the site has a page for each of them, so that it needs no network.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GATHERED = ROOT / "build" / "docs"
SITE = ROOT / "site"
TOP = {
    "docs/README.md": "index.md",
    "README.md": "readme.md",
    "SECURITY.md": "promises.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages with another name in the site."""

_LINK = re.compile(r"(?<!`)(?P<words>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^()\s]+)\)")
_FENCE = re.compile(r"^ *(?P<fence>`{3,}).*?^ *(?P=fence)\s*?$", re.MULTILINE | re.DOTALL)
_EITHER = re.compile(f"{_FENCE.pattern}|{_LINK.pattern}", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
# messages below each other; Markdown would make one paragraph of them
_QUOTED_LINE = re.compile(r"^(> .+)$(?=\n> )", re.MULTILINE)
_API = re.compile(r"^<!-- api: (\S+) -->\n\n.*$", re.MULTILINE)
_SHIM = re.compile(r"https://[^\"]+/iframe-worker/shim")
"""A script that the theme fetches so that its search works from files; ours is in the site."""
_LOCAL_SHIM = "assets/iframe-worker.js"
_UNINDEXED = "---\nsearch:\n  exclude: true\n---\n\n"
"""Marks a page that the search must not find: code and data would bury the documentation."""
_LARGEST = 200_000
"""Bytes of a file that gets a page; larger ones are copied."""
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json", ".md": "markdown"}


def sources() -> list[Path]:
    """The pages that people read, in the repository."""
    top = [ROOT / name for name in TOP if "/" not in name]
    return [*top, *sorted(DOCS.glob("*.md"))]


def links(text: str) -> Iterator[str]:
    """The targets of a page's links and pictures, code aside."""
    for match in _LINK.finditer(_FENCE.sub("", text)):
        yield match["target"]


def anchors(text: str) -> set[str]:
    """What can be linked to within a page; a heading that comes twice gets a number."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = _LINK.sub(lambda match: match["words"].strip("![]"), heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number, name = 0, slug
        while name in found:
            number += 1
            name = f"{slug}-{number}"
        found.add(name)
    return found


def dead_links(pages: Iterable[Path]) -> list[str]:
    """Links between pages, and from pages to files, that lead nowhere."""
    dead: list[str] = []
    for page in pages:
        for link in links(page.read_text(encoding="utf-8")):
            url = urlsplit(link)
            if url.scheme:
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            if not target.exists():
                dead.append(f"{page.name}: {link}: no such file")
            elif url.fragment and unquote(url.fragment) not in anchors(target.read_text("utf-8")):
                dead.append(f"{page.name}: {link}: no such heading")
    return dead


def gather(target: Path = GATHERED) -> None:
    """Write all pages of the site, with links that work there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("*.md"))
    for page in sources():
        text = _API.sub(_documented, page.read_text(encoding="utf-8"))
        text = _QUOTED_LINE.sub(r"\1  ", text)
        place = target / _place(page)
        place.write_text(_relinked(text, page, target), encoding="utf-8")


def finish(site: Path = SITE) -> list[str]:
    """Make the built site independent of the network; what is wrong with it."""
    wrong: list[str] = []
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(site.rglob("*.html"))}
    ids: dict[Path, set[str]] = {}
    found: dict[Path, _Found] = {}
    for page, text in pages.items():
        local = os.path.relpath(site / _LOCAL_SHIM, page.parent)
        changed = _SHIM.sub(local, text)
        if changed != text:
            page.write_text(changed, encoding="utf-8")
        found[page] = _Found()
        found[page].feed(changed)
        ids[page] = found[page].ids
    for page, seen in found.items():
        name = page.relative_to(site)
        wrong += [f"{name}: loads {one}" for one in seen.loads if urlsplit(one).netloc]
        if name.name == "404.html":  # its links are absolute: it stands for any page
            continue
        for link in seen.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            aim = (page.parent / unquote(url.path)).resolve() if url.path else page
            aim = aim / "index.html" if aim.is_dir() else aim
            if not aim.exists():
                wrong.append(f"{name}: {link}: no such page")
            elif url.fragment and aim in ids and unquote(url.fragment) not in ids[aim]:
                wrong.append(f"{name}: {link}: no such anchor")
    return wrong


class _Found(HTMLParser):
    """What a page loads, links to and can be linked at."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if given.get("src"):
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") in {"stylesheet", "icon", "preload", "preconnect"}:
            self.loads.append(given.get("href", ""))


def _place(page: Path) -> str:
    """Where a file of the repository is in the site."""
    name = page.relative_to(ROOT).as_posix()
    if name in TOP:
        return TOP[name]
    if page.parent == DOCS or DOCS in page.parents:
        return page.relative_to(DOCS).as_posix()
    return f"files/{name}{'/index' if page.is_dir() else ''}.md"


def _relinked(text: str, page: Path, target: Path) -> str:
    """The page with links as they are in the site; what they lead to is put there."""
    here = Path(_place(page)).parent

    def changed(match: re.Match[str]) -> str:
        url = urlsplit(match["target"])
        if url.scheme or not url.path:
            return match[0]
        aim = (page.parent / unquote(url.path)).resolve()
        place = _place(aim)
        if place.startswith("files/"):
            _show(aim, target)
            if aim.is_file() and not _is_shown(aim):
                place = place.removesuffix(".md")
        fragment = f"#{url.fragment}" if url.fragment else ""
        return f"{match['words']}({os.path.relpath(place, here)}{fragment})"

    return _EITHER.sub(lambda match: changed(match) if match["target"] else match[0], text)


def _show(aim: Path, target: Path) -> None:
    """A page for a file or a folder of the repository."""
    place = target / _place(aim)
    if place.exists():
        return
    name = aim.relative_to(ROOT).as_posix()
    place.parent.mkdir(parents=True, exist_ok=True)
    if aim.is_dir():
        inside = [one for one in sorted(aim.iterdir()) if not one.name.startswith(("_", "."))]
        place.write_text("", encoding="utf-8")
        rows = [f"{_UNINDEXED}# `{name}/`", ""]
        for one in inside:
            _show(one, target)
            shown = one.is_dir() or _is_shown(one)
            aim_place = _place(one) if shown else _place(one).removesuffix(".md")
            rows.append(f"* [`{one.name}`]({os.path.relpath(target / aim_place, place.parent)})")
        place.write_text("\n".join(rows) + "\n", encoding="utf-8")
    elif _is_shown(aim):
        fence = f"````{_LANGUAGES.get(aim.suffix, 'text')}"
        text = aim.read_text(encoding="utf-8").rstrip()
        page = f"{_UNINDEXED}# `{name}`\n\n{fence}\n{text}\n````\n"
        place.write_text(page, encoding="utf-8")
    else:
        shutil.copyfile(aim, place.with_suffix(""))


def _is_shown(aim: Path) -> bool:
    return aim.stat().st_size <= _LARGEST


def _documented(match: re.Match[str]) -> str:
    """What mkdocstrings turns into the documentation of an object, heading aside."""
    return f"::: {match[1]}\n    options:\n      show_root_heading: false\n"


def main() -> None:
    match sys.argv[1:]:
        case ["gather"]:
            gather()
        case ["finish"]:
            wrong = finish()
            sys.exit("\n".join(wrong) or None)
        case _:
            sys.exit("usage: python -m scripts.docs_site gather|finish")


if __name__ == "__main__":
    main()
