"""Reads configuration files into frozen settings and a list of problems.

In: files of any known host, the environment, a folder. Out: `Settings`, and each `Problem` with its
file and line. `sources` finds files, `owners` checks whether they are safe, `documents` parses and
`dialects` reads them, `layers` merges them, an `Approval` decides which parts of a project count,
`entries` makes models, `variables` are resolved just before use, and `watch` reports changes.
It must not know what happens to a server; only `watch` needs an event loop.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multitap.config.dialects import DIALECTS as DIALECTS
    from multitap.config.dialects import detect as detect
    from multitap.config.dialects import dialect as dialect
    from multitap.config.discover import Toolbox as Toolbox
    from multitap.config.discover import scan as scan
    from multitap.config.documents import Document as Document
    from multitap.config.documents import read_file as read_file
    from multitap.config.documents import read_text as read_text
    from multitap.config.entries import Explained as Explained
    from multitap.config.layers import Layer as Layer
    from multitap.config.layers import Loaded as Loaded
    from multitap.config.layers import Merged as Merged
    from multitap.config.layers import load as load
    from multitap.config.layers import merge as merge
    from multitap.config.layers import read_document as read_document
    from multitap.config.layers import settings_from as settings_from
    from multitap.config.models import Agent as Agent
    from multitap.config.models import Environment as Environment
    from multitap.config.models import HttpServer as HttpServer
    from multitap.config.models import Limits as Limits
    from multitap.config.models import LocalServer as LocalServer
    from multitap.config.models import ModelConfig as ModelConfig
    from multitap.config.models import OAuth as OAuth
    from multitap.config.models import Profile as Profile
    from multitap.config.models import PromptConfig as PromptConfig
    from multitap.config.models import Serve as Serve
    from multitap.config.models import ServerConfig as ServerConfig
    from multitap.config.models import Settings as Settings
    from multitap.config.models import StdioServer as StdioServer
    from multitap.config.models import ToolFilter as ToolFilter
    from multitap.config.problems import Place as Place
    from multitap.config.problems import Problem as Problem
    from multitap.config.problems import Severity as Severity
    from multitap.config.projects import Pending as Pending
    from multitap.config.schema import json_schema as json_schema
    from multitap.config.schema import json_schema_text as json_schema_text
    from multitap.config.secrets import masked as masked
    from multitap.config.sources import Search as Search
    from multitap.config.sources import Source as Source
    from multitap.config.sources import Surroundings as Surroundings
    from multitap.config.sources import agent_core as agent_core
    from multitap.config.sources import excelmanus as excelmanus
    from multitap.config.sources import host_files as host_files
    from multitap.config.sources import kode as kode
    from multitap.config.sources import native as native
    from multitap.config.sources import otter as otter
    from multitap.config.variables import Reference as Reference
    from multitap.config.variables import Scope as Scope
    from multitap.config.variables import Unresolved as Unresolved
    from multitap.config.variables import expand_model as expand_model
    from multitap.config.variables import expand_server as expand_server
    from multitap.config.variables import variables_of as variables_of
    from multitap.config.watch import changes as changes

_NAMES = {
    "dialects": "DIALECTS detect dialect",
    "discover": "Toolbox scan",
    "documents": "Document read_file read_text",
    "entries": "Explained",
    "layers": "Layer Loaded Merged load merge read_document settings_from",
    "models": "Agent Environment HttpServer Limits LocalServer ModelConfig OAuth Profile "
    "PromptConfig Serve ServerConfig Settings StdioServer ToolFilter",
    "problems": "Place Problem Severity",
    "projects": "Pending",
    "schema": "json_schema json_schema_text",
    "secrets": "masked",
    "sources": "Search Source Surroundings agent_core excelmanus host_files kode native otter",
    "variables": "Reference Scope Unresolved expand_model expand_server variables_of",
    "watch": "changes",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOME]  # noqa: PLE0604 - they are strings  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


def __getattr__(name: str) -> object:
    """Import on first use: the models alone cost more than a whole `--help` may take."""
    # first: the import itself asks for names, and would come back here
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(f"multitap.config.{_HOME[name]}"), name)
