"""Servers that are `"type": "local"` or `"remote"`: SPEC-07, agent-core and opencode."""

import re
from pathlib import Path

from msgspec.structs import replace

from multitap.config.dialects.draft import Draft, Reading, braces, literal, respelling
from multitap.config.dialects.host_format import Dialect, Spelling, Transcript, WritingRules, as_is
from multitap.config.dialects.rules import (
    Rules,
    argv,
    duration,
    env,
    flag,
    integer,
    members,
    oauth,
    one_of,
    path,
    string,
    table,
)
from multitap.config.documents import Document, KeyPath, Node, is_table
from multitap.config.problems import Severity

KEYS: Rules = {
    "type": one_of("local", "remote"),
    "command": argv,
    "environment": env,
    "url": string("url"),
    "headers": table("headers"),
    "enabled": flag("enabled"),
    "timeout": duration("timeout", bare="ms"),
    "oauth": oauth(
        {
            "clientId": string("oauth", "client_id"),
            "clientSecret": string("oauth", "client_secret"),
            "scope": string("oauth", "scope"),
        }
    ),
}
WORDS = {"env": "environment", "transport": "type"}


def _require_type(draft: Draft) -> None:
    """Requires a type, unless the entry only enables or disables another one."""
    if "type" not in draft.node.value and draft.node.value.keys() != {"enabled"}:
        draft.missing("type", hint='`"type": "local"` or `"type": "remote"`')


def _beside_file(draft: Draft) -> None:
    """Resolves commands such as `./mcpservers/x/server.mjs` from the file's folder."""
    if ("command",) in draft.fields:
        draft.fields.setdefault(("cwd",), draft.node.of(Path(literal(str(draft.base)))))


def _require_type_beside_file(draft: Draft) -> None:
    _require_type(draft)
    _beside_file(draft)


SPEC07_SPELLING = Spelling(keys=KEYS, check=_require_type, words=WORDS)
AGENT_CORE_SPELLING = Spelling(
    keys=KEYS, check=_require_type_beside_file, words=WORDS, beside_file=True
)
FOLDER_SPELLING = Spelling(keys=KEYS, check=_beside_file, words=WORDS, beside_file=True)
"""`mcpservers/NAME/config.jsonc`: one entry, which usually amends the discovered server."""


def read_spec07(document: Document, folder: Path) -> Reading:
    transcript = Transcript("spec07", document, folder, SPEC07_SPELLING)
    servers = transcript.root.find("mcp")
    # a bare map may have a server of that name
    is_inside = servers is not None and is_table(servers.value) and not _is_entry(servers)
    transcript.table(servers if is_inside else transcript.root)
    return transcript.reading()


_ROLE: Rules = {
    "enabled": flag("serve", "enabled"),
    "transport": string("serve", "transport"),
    "insecure": flag("serve", "insecure"),
    "requireToken": flag("serve", "require_token"),
    "http": members({"port": integer("serve", "port"), "host": string("serve", "host")}),
}


def read_agent_core(document: Document, folder: Path) -> Reading:
    return _read_agent_core(
        document, Transcript("agent-core", document, folder, AGENT_CORE_SPELLING)
    )


def read_mixed(document: Document, folder: Path) -> Reading:
    """Reads entries with opencode's variables as opencode does, the others as agent-core does."""
    spelling = _opencode_spelling(document)
    transcript = Transcript(
        "agent-core",
        document,
        folder,
        AGENT_CORE_SPELLING,
        spelling_of=lambda node: spelling if _uses_braces(node) else None,
    )
    return _read_agent_core(document, transcript)


def _read_agent_core(document: Document, transcript: Transcript) -> Reading:
    root = document.root
    transcript.general(root.find("mcpServer"), _ROLE)
    if (node := root.find("environment")) is not None:
        transcript.problem(Severity.WARNING, node, "is not used here; it belongs to a server")
    if _has_roles(root):
        transcript.general(root.find("mcp", "server"), _ROLE)
        transcript.table(root.find("mcp", "clients"))
        transcript.table(_beside(root, "clients", "server"))
    else:
        transcript.table(root.find("mcp"))
    return transcript.reading()


def _has_roles(root: Node) -> bool:
    """Whether `mcp` has `clients` and `server` rather than servers by name."""
    return any(
        node is not None and is_table(node.value) and not _is_entry(node)
        for node in (root.find("mcp", "clients"), root.find("mcp", "server"))
    )


def _has_type(node: Node) -> bool:
    return is_table(node.value) and "type" in node.value


def _is_entry(node: Node) -> bool:
    """Whether it is one server, not a table of them, one of which may be called `type`."""
    return is_server(node) or (
        _has_type(node) and not any(is_server(member) for _, member in node.members())
    )


def _beside(root: Node, *names: str) -> Node | None:
    """The other tables in `mcp`: a server with one of these names must not hide them."""
    if (node := root.find("mcp")) is None:
        return None
    others = {
        name: member.value
        for name, member in node.members()
        if name not in names and is_table(member.value)
    }
    return node.of(others)


OPENCODE_KEYS: Rules = {
    **KEYS,
    "cwd": path("cwd"),
    # Version 2 of the format says `disabled`, has snake_case in `oauth`, and puts the servers one
    # level deeper. Both versions are in use.
    "disabled": flag("enabled", inverse=True),
    "oauth": oauth(
        {
            "clientId": string("oauth", "client_id"),
            "client_id": string("oauth", "client_id"),
            "clientSecret": string("oauth", "client_secret"),
            "client_secret": string("oauth", "client_secret"),
            "scope": string("oauth", "scope"),
            "callbackPort": integer("oauth", "callback_port"),
            "callback_port": integer("oauth", "callback_port"),
            "redirectUri": string("oauth", "redirect_uri"),
            "redirect_uri": string("oauth", "redirect_uri"),
        }
    ),
}
_SPANS: Rules = {
    "startup": duration("connect_timeout", bare="ms"),
    "request": duration("timeout", bare="ms"),
}


def _span(draft: Draft, node: Node) -> None:
    """A timeout: one number in version 1, one for each phase in version 2."""
    rule = members(_SPANS) if is_table(node.value) else KEYS["timeout"]
    rule(draft, node)


OPENCODE_SPELLING = Spelling(
    keys={**OPENCODE_KEYS, "timeout": _span}, check=_require_type, words=WORDS
)


def _opencode_spelling(document: Document) -> Spelling:
    return replace(OPENCODE_SPELLING, rewrite=braces(document.path.parent))


def opencode_spelling_of(node: Node) -> Spelling | None:
    """The spelling of an entry of opencode among those of VS Code."""
    return _opencode_spelling(node.document) if _is_typed(node) else None


def spec07_spelling(node: Node) -> Spelling | None:
    """The spelling of an entry of SPEC-07 in a bare map of servers."""
    return SPEC07_SPELLING if _is_typed(node) else None


def read_opencode(document: Document, folder: Path) -> Reading:
    spelling = _opencode_spelling(document)
    transcript = Transcript("opencode", document, folder, spelling)
    root = transcript.root
    servers = root.find("mcp", "servers")
    if servers and not _is_entry(servers):
        transcript.default(root.find("mcp", "timeout"), spelling.keys, "timeout")
        transcript.table(servers)
        transcript.table(_beside(root, "servers"))
    else:
        transcript.default(root.find("experimental", "mcp_timeout"), spelling.keys, "timeout")
        transcript.table(root.find("mcp"))
    return transcript.reading()


def _is_typed(node: Node) -> bool:
    return is_table(node.value) and node.value.get("type") in ("local", "remote")


def is_server(node: Node) -> bool:
    """Whether it has what most hosts write for a server."""
    return is_table(node.value) and any(
        isinstance(node.value.get(key), str | list) for key in ("command", "url", "serverUrl")
    )


def _typed_servers(node: Node | None) -> list[Node]:
    """The servers that are `local` or `remote`."""
    return [member for _, member in node.members() if _is_typed(member)] if node else []


def _all_typed(node: Node | None) -> bool:
    """Whether these are servers by name, all of them `local` or `remote`."""
    return bool(_typed_servers(node)) and not (
        node
        and any(
            (is_server(member) or _has_type(member)) and not _is_typed(member)
            for _, member in node.members()
        )
    )


# `{env:X}` without a dollar is a form that only opencode knows.
def _uses_braces(node: Node) -> bool:
    return _is_typed(node) and bool(re.search(r"(?<!\$)\{(?:env|file):", str(node.value)))


def _is_file_of_opencode(document: Document) -> bool:
    schema = document.root.find("$schema")
    return "opencode" in document.path.name or bool(schema and "opencode" in str(schema.value))


def matches_spec07(document: Document) -> bool:
    return _all_typed(document.root)


def matches_agent_core(document: Document) -> bool:
    root = document.root
    return (
        root.find("mcpServer") is not None
        or (root.find("mcp") is not None and _has_roles(root))
        or bool(_typed_servers(root.find("mcp")))
    )


def matches_opencode(document: Document) -> bool:
    root = document.root
    if _all_typed(root.find("mcp", "servers")):
        return True
    # agent-core has the same `mcp` map
    servers = _typed_servers(root.find("mcp"))
    return bool(servers) and (_is_file_of_opencode(document) or all(map(_uses_braces, servers)))


def _spec07_container(root: Node) -> KeyPath:
    # a file that is a bare map of servers stays one
    return () if root.value and root.find("mcp") is None else ("mcp",)


def _agent_core_container(root: Node) -> KeyPath:
    return ("mcp", "clients") if _has_roles(root) else ("mcp",)


def _opencode_container(root: Node) -> KeyPath:
    servers = root.find("mcp", "servers")
    return ("mcp", "servers") if servers and not _is_entry(servers) else ("mcp",)


SPEC07 = Dialect(
    name="spec07",
    title="SPEC-07",
    read=read_spec07,
    matches=matches_spec07,
    writing=WritingRules(keys=KEYS, respell=as_is, container=_spec07_container),
)
AGENT_CORE = Dialect(
    name="agent-core",
    title="agent-core",
    read=read_agent_core,
    matches=matches_agent_core,
    writing=WritingRules(
        keys=KEYS, respell=as_is, container=_agent_core_container, suffix=".jsonc"
    ),
    files=("tong_work.jsonc", "environments/*/config.jsonc"),
)
MIXED_TYPES = replace(AGENT_CORE, read=read_mixed)
"""agent-core's, if only the content says so: each entry may be opencode's as well."""
OPENCODE = Dialect(
    name="opencode",
    title="opencode",
    read=read_opencode,
    matches=matches_opencode,
    writing=WritingRules(
        keys=OPENCODE_KEYS,
        respell=respelling(braces(Path("/")), env="{env:%s}", file="{file:%s}"),
        container=_opencode_container,
    ),
    files=("opencode.json", "opencode.jsonc"),
)
