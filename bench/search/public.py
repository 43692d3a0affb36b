"""Public sets of requests, if they are there: clone them into `public` beside this file."""

import csv
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import msgspec

from multitap.catalog.catalog import Tool
from multitap.tools import HubTool
from multitap.tools.search import Index
from multitap.tools.search.embedding import Embedding

PUBLIC = Path(__file__).parent / "public"
METATOOL = Path("MetaTool", "dataset")
GOLDEN = Path("mcpproxy-go", "specs", "065-evaluation-foundation", "datasets")
LIVE = Path("LiveMCPBench")
TRAJECTORIES = Path("baseline", "output", "claude-sonnet-4-20250514_Qwen3-Embedding-0.6B.json")
_MARKS = re.compile(r"</?tool_assistant>|^(?:server|tool):", re.MULTILINE)
_TOOL = re.compile(r"^\s*\d+\.\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Task:
    searches: tuple[str, ...]
    right: frozenset[str]
    """The names of the tools that its searches should show."""


def measured(model=None, public=PUBLIC):
    """A line for each set: both halves, because one of them was tuned on."""
    sets = {
        ("MetaTool, hit", 5): metatool,
        ("mcpproxy-go golden v1, recall", 5): golden,
        ("LiveMCPBench, tools shown by Claude's searches", 3): live,
    }
    models = [None] if model is None else [None, model]
    return [
        _line(name, depth, *read(public), folder)
        if read(public)
        else f"{name}: not measured, it is not in {public}"
        for (name, depth), read in sets.items()
        for folder in models
    ]


def metatool(public):
    """199 plug-ins, and 20,614 requests, each for one of them."""
    folder = public / METATOOL
    if not folder.exists():
        return None
    described = msgspec.json.decode((folder / "plugin_des.json").read_bytes())
    with (folder / "data" / "all_clean_data.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == 2 and row[1] in described]
    tools = [_tool(name, name, text) for name, text in described.items()]
    return tools, [Task((words,), frozenset({name})) for words, name in rows]


def golden(public):
    """The tools of seven reference servers, and graded requests."""
    folder = public / GOLDEN
    if not (folder / "retrieval_golden_v1.json").exists():
        return None
    corpus = msgspec.json.decode((folder / "corpus_v1.json").read_bytes())["tools"]
    queries = msgspec.json.decode((folder / "retrieval_golden_v1.json").read_bytes())["queries"]
    tools = [_tool(tool["server"], tool["tool"], tool["description"]) for tool in corpus]
    return tools, [Task((query["query"],), _graded(query)) for query in queries]


def live(public):
    """527 tools, and the searches that Claude Sonnet 4 made in 95 tasks."""
    folder = public / LIVE
    if not (folder / TRAJECTORIES).exists():
        return None
    listed = msgspec.json.decode((folder / "tools" / "LiveMCPTool" / "tools.json").read_bytes())
    tools = [
        _tool(name, tool["name"], tool["description"] or "", tool["inputSchema"])
        for entry in listed
        for name, server in entry["tools"].items()
        for tool in server["tools"]
    ]
    names = {tool.name for tool in tools}
    made = msgspec.json.decode((folder / TRAJECTORIES).read_bytes())
    tasks = (Task(tuple(_searches(task)), frozenset(_annotated(task)) & names) for task in made)
    return tools, [task for task in tasks if task.searches and task.right]


def _graded(query):
    labels = (label for label in query["labels"] if label["relevance"])
    return frozenset(label["tool_id"].partition(":")[2] for label in labels)


def _annotated(task):
    return _TOOL.findall(task["Annotator Metadata"]["Tools"])


def _searches(task):
    for message in task["messages"]:
        for call in message.get("tool_calls") or ():
            if call["function"]["name"] == "route":
                query = msgspec.json.decode(call["function"]["arguments"]).get("query", "")
                yield " ".join(_MARKS.sub(" ", query).split())


def _tool(server, name, text, schema=None):
    definition = {"name": name, "description": text, "inputSchema": schema or {"type": "object"}}
    return HubTool(Tool(name, server, name, text, definition, link=None), hub=None)


def _line(name, depth, tools, tasks, model):
    embedding = None if model is None else Embedding(model)
    index = Index(tools, embedding)
    if embedding is not None:
        embedding.load()
        index.learn()
        while embedding.has_unread:
            embedding.read_next()
        name = f"{name} with the model"
    shares = {0: [], 1: []}
    for task in tasks:
        shown = {hit.tool.name for words in task.searches for hit in index.search(words, depth)}
        half = zlib.crc32(task.searches[0].encode()) % 2
        shares[half].append(len(shown & task.right) / len(task.right))
    tuned, other = (
        f"{fmean(values):.3f} of {len(values)}" if values else "none" for values in shares.values()
    )
    return f"{name} at {depth}: {other} (the half that was tuned on: {tuned})"
