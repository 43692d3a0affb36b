"""Codex: TOML tables under `mcp_servers`, secrets named by their environment variable."""

from pathlib import Path

from multitap.config.dialects.dialect import Dialect, Spelling, Transcript
from multitap.config.dialects.draft import Draft, Reading
from multitap.config.dialects.rewrites import literal
from multitap.config.dialects.rules import (
    Rules,
    arguments,
    duration,
    env,
    flag,
    ignored,
    integer,
    oauth,
    path,
    program,
    string,
    strings,
    table,
    unsupported,
    words,
)
from multitap.config.documents import Document, Node, is_list, is_table


def _variables(draft: Draft, node: Node) -> None:
    """Names to pass on, each plain or as `{ name, source }`."""
    if not is_list(node.value):
        draft.wrong(node, "a list of variables")
    for element in node.elements():
        name = element.value.get("name") if is_table(element.value) else element.value
        if isinstance(name, str):
            draft.set(("env", name), element, f"${{env:{name}}}")
        else:
            draft.wrong(element, "the name of a variable")


def _url(draft: Draft, node: Node) -> None:
    string("url")(draft, node)
    draft.set("transport", node, "streamable-http")


def _bearer(draft: Draft, node: Node) -> None:
    if (name := draft.text(node)) is not None:
        draft.set(("headers", "Authorization"), node, f"Bearer ${{env:{name}}}")


def _header_variables(draft: Draft, node: Node) -> None:
    if not is_table(node.value):
        draft.wrong(node, "a table of headers and variables")
    for header, member in node.members():
        if (name := draft.text(member)) is not None:
            draft.set(("headers", header), member, f"${{env:{name}}}")


def _bearer_itself(draft: Draft, node: Node) -> None:
    draft.error(node, "a token is not allowed here", hint="use `bearer_token_env_var`")


KEYS: Rules = {
    "command": program,
    "args": arguments,
    "env": env,
    "env_vars": _variables,
    "cwd": path("cwd"),
    "url": _url,
    "bearer_token": _bearer_itself,
    "bearer_token_env_var": _bearer,
    "http_headers": table("headers"),
    "env_http_headers": _header_variables,
    "http_headers_helper": unsupported("is not run; write the headers instead"),
    "scopes": words("oauth", "scope"),
    "oauth": oauth(
        {
            "client_id": string("oauth", "client_id"),
            "callback_port": integer("oauth", "callback_port"),
        }
    ),
    "enabled": flag("enabled"),
    "startup_timeout_sec": duration("connect_timeout", bare="s"),
    "startup_timeout_ms": duration("connect_timeout", bare="ms"),
    "tool_timeout_sec": duration("timeout", bare="s"),
    "enabled_tools": strings("filter", "allow"),
    "disabled_tools": strings("filter", "deny"),
    **dict.fromkeys(
        (
            "auth",
            "oauth_resource",
            "required",
            "default_tools_approval_mode",
            "tools",
            "supports_parallel_tool_calls",
            "omit_tools_from",
            "environment_id",
        ),
        ignored,
    ),
}
SPELLING = Spelling(KEYS, literal, words={"headers": "http_headers"})


def read(document: Document, folder: Path) -> Reading:
    transcript = Transcript("codex", document, folder, SPELLING)
    transcript.table(transcript.root.find("mcp_servers"))
    return transcript.reading()


def matches(document: Document) -> bool:
    servers = document.root.find("mcp_servers")
    return servers is not None and is_table(servers.value)


CODEX = Dialect("codex", "Codex", read, matches, (".codex/config.toml",))
