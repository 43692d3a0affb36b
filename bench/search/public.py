"""Public sets of requests, if they are there: clone them into `public` beside this file."""

import csv
import zlib
from pathlib import Path
from statistics import fmean

import msgspec

from multitap.catalog.catalog import Tool
from multitap.tools import HubTool
from multitap.tools.search import Index

PUBLIC = Path(__file__).parent / "public"
DEPTH = 5


def measured():
    """A line for each set that is there: both halves, because one of them was tuned on."""
    sets = {"MetaTool, hit": metatool, "mcpproxy-go golden v1, recall": golden}
    return [_line(name, *read()) for name, read in sets.items() if read()]


def metatool():
    """199 plug-ins, and 20,614 requests, each for one of them."""
    folder = PUBLIC / "MetaTool" / "dataset"
    if not folder.exists():
        return None
    described = msgspec.json.decode((folder / "plugin_des.json").read_bytes())
    with (folder / "data" / "all_clean_data.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == 2 and row[1] in described]
    tools = [_tool(name, name, text) for name, text in described.items()]
    return tools, [(words, {name}) for words, name in rows]


def golden():
    """The tools of seven reference servers, and graded requests."""
    folder = PUBLIC / "mcpproxy-go" / "specs" / "065-evaluation-foundation" / "datasets"
    if not (folder / "retrieval_golden_v1.json").exists():
        return None
    corpus = msgspec.json.decode((folder / "corpus_v1.json").read_bytes())["tools"]
    queries = msgspec.json.decode((folder / "retrieval_golden_v1.json").read_bytes())["queries"]
    tools = [_tool(tool["server"], tool["tool"], tool["description"]) for tool in corpus]
    right = (
        {label["tool_id"].partition(":")[2] for label in query["labels"] if label["relevance"]}
        for query in queries
    )
    return tools, [(query["query"], names) for query, names in zip(queries, right, strict=True)]


def _tool(server, name, text):
    definition = {"name": name, "description": text, "inputSchema": {"type": "object"}}
    return HubTool(Tool(name, server, name, text, definition, link=None), hub=None)


def _line(name, tools, requests):
    index = Index(tools)
    shares = {0: [], 1: []}
    for words, right in requests:
        first = {hit.tool.name for hit in index.search(words, DEPTH)}
        shares[zlib.crc32(words.encode()) % 2].append(len(first & right) / len(right))
    tuned, other = (f"{fmean(values):.3f} of {len(values)}" for values in shares.values())
    return f"{name} at {DEPTH}: {other} (the half that was tuned on: {tuned})"
