"""Real tools, and what people ask of them."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from multitap.catalog.catalog import Tool
from multitap.names import choose_names
from multitap.tools import HubTool

HERE = Path(__file__).parent
PARTS = ("everyday", "drawn", "held out", "searches, seen", "searches")


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody says, and the tools that do it, any of them as well as the others."""

    words: str
    right: frozenset[str]
    """Each as `server/tool`."""
    part: str
    """`everyday`: what comes to mind first. `drawn`: written for tools drawn by lot. The weights
    and the word list were chosen with both in view. `held out`: drawn by lot and written when that
    was done; nobody has looked at which of these fail, but half of them were counted when lines
    were dropped from the list. `searches`: short ones, as models write them; half of them were
    `seen` when the list was extended."""


def tools():
    """Every tool of the corpus, named as a hub names it; none can be called."""
    definitions = msgspec.json.decode((HERE / "tools.json").read_bytes())
    servers = {}
    for definition in definitions:
        servers.setdefault(definition["server"], {})[definition["name"]] = definition
    return [tool for server in servers for tool in _named(server, servers)]


def requests():
    return msgspec.json.decode((HERE / "requests.json").read_bytes(), type=list[Request])


def label(tool):
    return f"{tool.server}/{tool.tool.raw_name}"


def _named(server, servers):
    names = choose_names(server, tuple(servers[server]), servers=servers)
    for raw_name, definition in servers[server].items():
        described = definition.get("description", "")
        tool = Tool(names[raw_name], server, raw_name, described, definition, link=None)
        yield HubTool(tool, hub=None)
