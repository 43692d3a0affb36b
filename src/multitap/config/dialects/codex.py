"""Codex: TOML tables under `mcp_servers`, secrets named by their environment variable."""

import re
from pathlib import Path

from multitap.config.dialects.draft import Draft, Reading, UnwrittenFields, literal, respelling
from multitap.config.dialects.host_format import Dialect, Spelling, Transcript, WritingRules, within
from multitap.config.dialects.rules import (
    Rules,
    TwoWay,
    arguments,
    duration,
    env,
    flag,
    ignore,
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

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")


def _variables(draft: Draft, node: Node) -> None:
    """Names of variables to pass on, each plain or as `{ name, source }`."""
    if not is_list(node.value):
        draft.wrong(node, "a list of variables")
    for element in node.elements():
        name = element.value.get("name") if is_table(element.value) else element.value
        if isinstance(name, str):
            draft.set(("env", name), element, f"${{env:{name}}}")
        else:
            draft.wrong(element, "the name of a variable")


# Codex has no legacy SSE: an address in its file can only mean Streamable HTTP.
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


def _pass_on(fields: UnwrittenFields) -> list[str] | None:
    """Variables that are passed on under their own name."""
    names = [name for name in fields.names("env") if _variable(fields, "env", name) == name]
    return [name for name in names if fields.take("env", name)] or None


def _token_variable(fields: UnwrittenFields) -> str | None:
    text = str(fields.look("headers", "Authorization") or "")
    match = _VARIABLE.fullmatch(text.removeprefix("Bearer "))
    if match is None or not text.startswith("Bearer "):
        return None
    fields.take("headers", "Authorization")
    return match[1]


def _named_headers(fields: UnwrittenFields) -> dict[str, str] | None:
    variables = {name: _variable(fields, "headers", name) for name in fields.names("headers")}
    return {
        name: variable
        for name, variable in variables.items()
        if variable and fields.take("headers", name)
    } or None


def _variable(fields: UnwrittenFields, *path: str) -> str | None:
    """The variable in a text that consists only of it."""
    match = _VARIABLE.fullmatch(str(fields.look(*path)))
    return match and match[1]


# Codex rejects a literal token too. An error, not a note: a server that starts without its token
# fails later with a 401 that does not say why.
def _bearer_itself(draft: Draft, node: Node) -> None:
    draft.error(node, "a token is not allowed here", hint="use `bearer_token_env_var`")


KEYS: Rules = {
    "command": program,
    "args": arguments,
    # Before `env`: on writing, each of these takes the variables it can name, and `env` gets the
    # rest. The same applies to the headers below.
    "env_vars": TwoWay(_variables, _pass_on),
    "env": env,
    "cwd": path("cwd"),
    "url": TwoWay(_url, lambda fields: fields.text("url")),
    "bearer_token": _bearer_itself,
    "bearer_token_env_var": TwoWay(_bearer, _token_variable),
    "env_http_headers": TwoWay(_header_variables, _named_headers),
    "http_headers": table("headers"),
    # A shell command: reading the file of another host must not run anything.
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
        ignore,
    ),
}
# Codex expands nothing in values: a `${` in its file is text, and must not read our environment.
SPELLING = Spelling(keys=KEYS, rewrite=literal, words={"headers": "http_headers"})


def read(document: Document, folder: Path) -> Reading:
    transcript = Transcript("codex", document, folder, SPELLING)
    transcript.table(transcript.root.find("mcp_servers"))
    return transcript.reading()


def matches(document: Document) -> bool:
    servers = document.root.find("mcp_servers")
    return servers is not None and is_table(servers.value)


WRITING = WritingRules(
    keys=KEYS, respell=respelling(literal), container=within("mcp_servers"), suffix=".toml"
)
CODEX = Dialect(
    name="codex",
    title="Codex",
    read=read,
    matches=matches,
    writing=WRITING,
    files=(".codex/config.toml",),
)
