"""Real tools and what people ask of them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from multitap.catalog import Tool
from multitap.names import Naming, expose
from multitap.tools import HubTool

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Request:
    """What somebody says, and the tools that do it, any of them equally well."""

    words: str
    right: tuple[str, ...]
    """As `server/tool`."""
    half: str
    """`dev`: weights and words were chosen by it. `held out`: they were not."""

    @cached_property
    def wanted(self):
        return frozenset(self.right)


def tools():
    """Every tool of the corpus, named as a hub names it; none can be called."""
    definitions = msgspec.json.decode((HERE / "tools.json").read_bytes())
    by_server = {}
    for definition in definitions:
        by_server.setdefault(definition["server"], {})[definition["name"]] = definition
    return [tool for server in by_server for tool in _named(server, by_server)]


def requests():
    return msgspec.json.decode((HERE / "requests.json").read_bytes(), type=list[Request])


def label(tool):
    return f"{tool.tool.server}/{tool.tool.raw_name}"


def _named(server, by_server):
    definitions = by_server[server]
    names = expose(
        server, tuple(definitions), servers=by_server, naming=Naming.SERVER_TOOL, shared=()
    )
    for raw_name, definition in definitions.items():
        described = definition.get("description", "")
        tool = Tool(names[raw_name], server, raw_name, described, definition, link=None)
        yield HubTool(tool, hub=None)
