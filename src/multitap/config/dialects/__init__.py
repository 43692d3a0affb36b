"""The file formats of MCP hosts, each as a table of rules.

In: a parsed document. Out: entries in our terms, not validated yet, and a problem for each key that
cannot be used. Each host is one file of `rules`; `detect` recognises the dialect of a document. It
must not know other files, the values of variables, or models.
"""

from itertools import chain

from multitap.config.dialects.codex import CODEX
from multitap.config.dialects.continue_dev import CONTINUE
from multitap.config.dialects.draft import Entry, FieldPath, Reading
from multitap.config.dialects.goose import GOOSE
from multitap.config.dialects.host_format import Dialect
from multitap.config.dialects.local_remote import AGENT_CORE, MIXED_TYPES, OPENCODE, SPEC07
from multitap.config.dialects.mcp_servers import FAMILY, MIXED_HOSTS, PLAIN
from multitap.config.dialects.native import MULTITAP
from multitap.config.dialects.otter import OTTER
from multitap.config.dialects.vscode import VSCODE
from multitap.config.dialects.zed import ZED
from multitap.config.documents import Document, is_table
from multitap.config.problems import did_you_mean
from multitap.errors import ConfigError

__all__ = [
    "DIALECTS",
    "OTHER_NAMES",
    "Dialect",
    "Entry",
    "FieldPath",
    "Reading",
    "detect",
    "dialect",
]

# From the most specific content to the least: `mcpServers` and a bare map of servers fit nearly
# every host, so dialects with their own keys come first.
_IN_ORDER = (
    *(CODEX, OTTER, ZED, GOOSE, MULTITAP, OPENCODE, VSCODE, AGENT_CORE, CONTINUE),
    *FAMILY,
    *(SPEC07, PLAIN),
)
DIALECTS = {dialect.name: dialect for dialect in _IN_ORDER}
"""By name; the first one that matches a document is used."""
OTHER_NAMES = {"claude-desktop": "claude", "code": "vscode", "gemini-cli": "gemini"}
"""What people also call a client, and its dialect."""


def dialect(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        ConfigError: there is none.
    """
    if dialect_ := DIALECTS.get(OTHER_NAMES.get(name, name)):
        return dialect_
    hint = did_you_mean(name, DIALECTS) or f"known: {', '.join(sorted(DIALECTS))}"
    raise ConfigError(f"no client or format named {name!r}", hint=hint)


def detect(document: Document) -> Dialect | None:
    """The dialect of a document: by content, and by file name if that is ambiguous.

    Content wins over the name, since people paste one host's entries into another host's file.
    """
    if not is_table(document.data):
        return None
    named = [
        dialect
        for dialect in _IN_ORDER
        if any(document.path.match(pattern) for pattern in dialect.files)
    ]
    # most files of the family have no key that only one host knows, so the file name decides
    both = (
        dialect
        for dialect in named
        if dialect.matches(document) or (dialect in FAMILY and PLAIN.matches(document))
    )
    shaped = (dialect for dialect in _IN_ORDER if dialect.matches(document))
    # in this order, as far as needed: a file that is named as its content says asks one dialect
    likeliest = next(chain(both, shaped, named), None)
    if likeliest is AGENT_CORE and not named:
        return MIXED_TYPES
    return MIXED_HOSTS if likeliest is PLAIN else likeliest
