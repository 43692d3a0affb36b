"""What was measured, as the tables of docs/search.md."""

import re
from pathlib import Path

from bench.report import table
from bench.search import corpus, measure

PAGE = Path(__file__).parents[2] / "docs" / "search.md"
MARKED = re.compile(r"(<!-- search:begin -->\n).*(<!-- search:end -->)", re.DOTALL)
MODEL = re.compile(r"(<!-- model:begin -->\n).*(<!-- model:end -->)", re.DOTALL)


def render(recalls, tokens):
    """Everything that comes out the same in every run."""
    tools = corpus.tools()
    servers = len({tool.server for tool in tools})
    return "\n\n".join(
        (
            f"{len(tools):,} tools of {servers} servers, {len(corpus.requests())} requests.",
            _recall_table(recalls),
            _token_table(tokens),
        )
    )


def render_gains(gains):
    """What a model of sentences finds, beside words alone."""
    depths = measure.DEPTHS
    columns = (
        "requests",
        "half",
        "number",
        *(f"words at {depth}" for depth in depths),
        *(f"with the model at {depth}" for depth in depths),
    )
    rows = [
        (
            row.part,
            gain.half,
            str(row.requests),
            *(f"{share:.2f}" for share in row.plain + row.ours),
        )
        for gain in reversed(gains)
        for row in gain.rows
        if gain.half == "other" or row.part == "all"
    ]
    return table(columns, rows)


def write(text, place=MARKED):
    page = PAGE.read_text()
    PAGE.write_text(place.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page))


def written():
    """The tables as the page has them."""
    found = MARKED.search(PAGE.read_text())
    return found[0].removeprefix(found[1]).removesuffix(found[2]).strip()


def _recall_table(recalls):
    depths = measure.DEPTHS
    columns = (
        "requests",
        "number",
        *(f"at {depth}" for depth in depths),
        *(f"plain BM25 at {depth}" for depth in depths),
        f"ours / plain at {depths[1]}",
    )
    rows = [
        (
            one.part,
            str(one.requests),
            *(f"{share:.2f}" for share in one.ours + one.plain),
            f"{one.ours[1] / one.plain[1]:.2f}",
        )
        for one in recalls
    ]
    return table(columns, rows)


def _token_table(tokens):
    once = tokens.three + tokens.answer
    rows = [
        ("all definitions, in every request", f"{tokens.everything:,}"),
        ("the three tools, in every request", f"{tokens.three:,}"),
        ("what one search returns, on average", f"{tokens.answer:,.0f}"),
        ("saved in a request after one search", f"{1 - once / tokens.everything:.2%}"),
    ]
    return table(("", "tokens"), rows)
