"""Goose: YAML `extensions`, some of which are MCP servers."""

import re
from pathlib import Path

from multitap.config.dialects.draft import Draft, Reading, UnwrittenFields, literal, respelling
from multitap.config.dialects.host_format import Dialect, Spelling, Transcript, WritingRules, within
from multitap.config.dialects.rules import (
    Rules,
    TwoWay,
    all_arguments,
    duration,
    env,
    flag,
    ignore,
    nothing,
    one_of,
    pick,
    program,
    string,
    strings,
    table,
    texts,
    unsupported,
)
from multitap.config.documents import Document, Node, is_list, is_table
from multitap.config.problems import Severity

# Parts of Goose, or Python code that it runs itself: not MCP servers that we could start.
OWN_KINDS = ("builtin", "platform", "frontend", "inline_python")
# `$${` since `literal` has been applied to the text before.
_VARIABLE = re.compile(r"\$\$\{(\w+)\}|\$(\w+)")


def _secrets(draft: Draft, node: Node) -> None:
    """Names of variables whose values Goose keeps in its key ring."""
    for name in texts(draft, node) or ():
        draft.set(("env", name), node, f"${{auth:{name}}}")


def _keep_secrets(fields: UnwrittenFields) -> list[str] | None:
    """Variables that consist only of a secret of the same name."""
    values = {name: fields.look("env", name) for name in fields.names("env")}
    names = [name for name, text in values.items() if text == f"${{auth:{name}}}"]
    return [name for name in names if fields.take("env", name)] or None


def _tools(draft: Draft, node: Node) -> None:
    """An empty list of tools, which means all of them."""
    if node.value != []:
        strings("filter", "allow")(draft, node)


def _description(draft: Draft, node: Node) -> None:
    """Ignored if empty: Goose requires the key."""
    if node.value != "":
        string("description")(draft, node)


def _fill_headers(draft: Draft) -> None:
    """Headers of a remote server may name its `envs` and `env_keys`, which have no other use."""
    if ("url",) not in draft.fields:
        return
    values = {path[1]: draft.fields.pop(path) for path in [*draft.fields] if path[0] == "env"}

    def fill(match: re.Match[str]) -> str:
        variable = values.get(match.group(1) or match.group(2))
        return variable.value if variable else match.group()

    for path, node in draft.fields.items():
        if path[0] == "headers":
            draft.fields[path] = node.of(_VARIABLE.sub(fill, node.value))


KEYS: Rules = {
    "type": one_of("stdio", "streamable_http", "sse"),
    "cmd": program,
    "args": all_arguments,
    "envs": env,
    "env_keys": _secrets,
    "uri": string("url"),
    "headers": table("headers"),
    "socket": unsupported("servers behind a Unix socket are not supported"),
    "enabled": flag("enabled"),
    "description": TwoWay(_description, lambda fields: fields.text("description")),
    "timeout": duration("timeout", bare="s"),
    "available_tools": _tools,
    "name": nothing,
    **dict.fromkeys(("display_name", "bundled"), ignore),
}
# Goose expands variables in headers only, and only from `envs` and `env_keys`; elsewhere `${` is
# text.
SPELLING = Spelling(
    keys=KEYS,
    rewrite=literal,
    check=_fill_headers,
    words={"command": "cmd", "url": "uri", "env": "envs", "transport": "type"},
)


def read(document: Document, folder: Path) -> Reading:
    transcript = Transcript("goose", document, folder, SPELLING)
    for name, node in transcript.servers(transcript.root.find("extensions")):
        if is_table(node.value) and node.value.get("type") in OWN_KINDS:
            transcript.problem(Severity.NOTE, node, "is part of Goose; left there", server=name)
        else:
            transcript.entry(name, node)
    return transcript.reading()


def matches(document: Document) -> bool:
    extensions = document.root.find("extensions")
    return extensions is not None and any(
        is_table(node.value) and "type" in node.value and not is_list(node.value["type"])
        for _, node in extensions.members()
    )


WRITING = WritingRules(
    keys={
        **pick(KEYS, "type", "cmd", "args"),
        "env_keys": TwoWay(_secrets, _keep_secrets),
        **pick(KEYS, "envs", "uri", "headers", "enabled", "description", "timeout"),
        "available_tools": TwoWay(_tools, lambda fields: fields.texts("filter", "allow") or None),
    },
    respell=respelling(literal),
    container=within("extensions"),
    suffix=".yaml",
    name_key="name",
    required={"enabled": True, "description": ""},
)
GOOSE = Dialect(
    name="goose",
    title="Goose",
    read=read,
    matches=matches,
    writing=WRITING,
    files=("goose/config.yaml",),
)
