"""The public sets of requests are read in the form in which their authors publish them."""

import json

from bench.search import public

PLUGINS = {"Recipes": "Find recipes for dinner.", "Flights": "Search flights and fares."}
CORPUS = [
    {"server": "git", "tool": "git_log", "description": "Shows the commit log."},
    {"server": "fs", "tool": "read_file", "description": "Read a file."},
]
LIVE_TOOLS = [
    {
        "name": "Finance",
        "tools": {
            "yahoo-finance": {
                "server_name": "yahoo-finance",
                "tools": [
                    {
                        "name": "get_news",
                        "description": "Get news for a given stock symbol.",
                        "inputSchema": {"type": "object", "properties": {}},
                        "annotations": None,
                    }
                ],
            }
        },
    }
]


def trajectory(query):
    arguments = json.dumps({"query": query})
    return {
        "Annotator Metadata": {"Tools": "1. get_news\n2. not_there"},
        "messages": [
            {"role": "user", "content": "What is new?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "route", "arguments": arguments}}],
            },
        ],
    }


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if isinstance(text, str) else json.dumps(text))


def test_metatool_is_read(tmp_path):
    folder = tmp_path / public.METATOOL
    write(folder / "plugin_des.json", PLUGINS)
    write(folder / "data" / "all_clean_data.csv", "Query,Tool\nWhat is for dinner?,Recipes\n")

    tools, tasks = public.metatool(tmp_path)

    assert [tool.name for tool in tools] == [*PLUGINS]
    assert tasks == [public.Task(("What is for dinner?",), frozenset({"Recipes"}))]


def test_the_golden_set_is_read(tmp_path):
    folder = tmp_path / public.GOLDEN
    labels = [
        {"tool_id": "git:git_log", "relevance": 2},
        {"tool_id": "fs:read_file", "relevance": 0},
    ]
    write(folder / "corpus_v1.json", {"tools": CORPUS})
    write(
        folder / "retrieval_golden_v1.json", {"queries": [{"query": "history", "labels": labels}]}
    )

    _, tasks = public.golden(tmp_path)

    assert tasks == [public.Task(("history",), frozenset({"git_log"}))]


def test_the_searches_of_claude_are_read(tmp_path):
    folder = tmp_path / public.LIVE
    query = "<tool_assistant>\nserver: stock market\ntool: latest news\n</tool_assistant>"
    write(folder / "tools" / "LiveMCPTool" / "tools.json", LIVE_TOOLS)
    write(folder / public.TRAJECTORIES, [trajectory(query)])

    _, tasks = public.live(tmp_path)

    assert tasks == [public.Task(("stock market latest news",), frozenset({"get_news"}))]


def test_what_is_there_is_measured_and_the_rest_is_named(tmp_path):
    folder = tmp_path / public.LIVE
    write(folder / "tools" / "LiveMCPTool" / "tools.json", LIVE_TOOLS)
    write(folder / public.TRAJECTORIES, [trajectory("news of a stock")])

    metatool, golden, live = public.measured(public=tmp_path)

    assert "not measured" in metatool
    assert "not measured" in golden
    assert "1.000 of 1" in live
