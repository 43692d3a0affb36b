"""Zed: `context_servers` among the editor's settings."""

from pathlib import Path

from multitap.config.dialects.draft import Draft, Reading, literal, respelling
from multitap.config.dialects.host_format import Dialect, Spelling, Transcript, WritingRules, within
from multitap.config.dialects.rules import (
    Rules,
    all_arguments,
    arguments,
    duration,
    env,
    flag,
    ignore,
    members,
    oauth,
    program,
    string,
    table,
)
from multitap.config.documents import Document, Node, is_table
from multitap.config.problems import Severity

_TIMEOUT = duration("timeout", bare="s")
# Older settings of Zed, which are still in use, have `"command": {"path", "args", "env"}`.
_NESTED: Rules = {"path": program, "args": arguments, "env": env, "timeout": _TIMEOUT}


def _command(draft: Draft, node: Node) -> None:
    """A program, or a table in older settings."""
    rule = members(_NESTED) if is_table(node.value) else program
    rule(draft, node)


KEYS: Rules = {
    "command": _command,
    "args": all_arguments,
    "env": env,
    "url": string("url"),
    "headers": table("headers"),
    "timeout": _TIMEOUT,
    "enabled": flag("enabled"),
    "oauth": oauth(
        {
            "client_id": string("oauth", "client_id"),
            "client_secret": string("oauth", "client_secret"),
        }
    ),
    **dict.fromkeys(("remote", "source", "settings"), ignore),
}


def read(document: Document, folder: Path) -> Reading:
    transcript = Transcript("zed", document, folder, Spelling(keys=KEYS, rewrite=literal))
    root = transcript.root
    transcript.default(root.find("context_server_timeout"), KEYS, "timeout")
    for name, node in transcript.servers(root.find("context_servers")):
        if _is_extension(node):
            message = "comes from an extension of Zed; left there"
            transcript.problem(Severity.NOTE, node, message, server=name)
        else:
            transcript.entry(name, node)
    return transcript.reading()


# The program of an extension is inside Zed, and its entry only has settings for it.
def _is_extension(node: Node) -> bool:
    return is_table(node.value) and (
        node.value.get("source") == "extension"
        or ("settings" in node.value and not node.value.keys() & {"command", "url"})
    )


def matches(document: Document) -> bool:
    return document.root.find("context_servers") is not None


WRITING = WritingRules(
    keys={"command": program, **{key: rule for key, rule in KEYS.items() if key != "command"}},
    respell=respelling(literal),
    container=within("context_servers"),
)
ZED = Dialect(
    name="zed",
    title="Zed",
    read=read,
    matches=matches,
    writing=WRITING,
    files=("zed/settings.json", ".zed/settings.json"),
)
