"""The pages of the documentation: on the forge, and as they are put together for the site."""

import re
import tomllib
from urllib.parse import urlsplit

import pytest
from scripts.docs_site import DOCS, ROOT, TOP, dead_links, finish, gather, links, sources

SITE = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


def listed(nav):
    for entry in nav:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else listed(target)


def test_every_link_leads_somewhere_on_the_forge():
    assert not dead_links(sources())


def test_every_link_leads_somewhere_in_the_site(tmp_path):
    gather(tmp_path / "docs")

    pages = sorted((tmp_path / "docs").rglob("*.md"))
    assert len(pages) > len(sources())
    assert not dead_links(pages)
    assert (
        not [  # nothing that only the repository has
            (page.name, link)
            for page in pages
            for link in links(page.read_text())
            if not urlsplit(link).scheme and (page.parent / link).resolve().is_relative_to(ROOT)
        ]
    )


def test_the_search_finds_pages_and_no_code_or_data(tmp_path):
    gather(tmp_path / "docs")

    files = sorted((tmp_path / "docs" / "files").rglob("*.md"))
    assert any(page.name == "requests.json.md" for page in files)
    for page in files:
        assert page.read_text().startswith("---\nsearch:\n  exclude: true\n---\n"), page
    for page in (tmp_path / "docs").glob("*.md"):
        assert "exclude: true" not in page.read_text()[:100], page


def test_every_page_is_in_the_navigation():
    pages = {TOP.get(f"docs/{page.name}", page.name) for page in DOCS.glob("*.md")}
    ours = {place for name, place in TOP.items() if "/" not in name and name != "README.md"}

    assert {*listed(SITE["nav"])} == pages | ours


@pytest.mark.parametrize("page", sources(), ids=lambda page: page.name)
def test_no_picture_comes_from_elsewhere(page):
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)|<img[^>]*src=[\"']([^\"']+)", page.read_text())

    assert not [one for both in pictures for one in both if urlsplit(one).netloc]


def test_a_built_page_that_needs_the_network_or_leads_nowhere_is_reported(tmp_path):
    shim = "https://cdn.example/iframe-worker/shim"
    (tmp_path / "a.html").write_text(
        f'<script src="{shim}"></script><link rel="stylesheet" href="https://fonts.example/x.css">'
        '<a href="b.html">b</a><a href="a.html#there">c</a><a href="#no">d</a><p id="there">'
    )

    wrong = finish(tmp_path)

    assert wrong == [
        "a.html: loads https://fonts.example/x.css",
        "a.html: b.html: no such page",
        "a.html: #no: no such anchor",
    ]
    assert '<script src="assets/iframe-worker.js">' in (tmp_path / "a.html").read_text()
