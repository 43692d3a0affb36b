"""otter: a TOML list of servers under `mcp.servers` or `mcp_servers`."""

from pathlib import Path

from multitap.config.dialects.draft import Reading
from multitap.config.dialects.host_format import Dialect, Spelling, Transcript, WritingRules, as_is
from multitap.config.dialects.rules import (
    EVERY_TRANSPORT,
    Rules,
    arguments,
    duration,
    env,
    flag,
    nothing,
    pick,
    program,
    string,
    table,
)
from multitap.config.documents import Document, KeyPath, Node, is_list

KEYS: Rules = {
    "name": nothing,
    "transport": EVERY_TRANSPORT,
    "command": program,
    "args": arguments,
    "env": env,
    "url": string("url"),
    "headers": table("headers"),
    "timeout": duration("timeout", bare=None),
    "enabled": flag("enabled"),
    "reconnect": flag("reconnect"),
    "auto_reconnect": flag("reconnect"),
}
GENERAL: Rules = {
    "servers": nothing,
    "enabled": flag("enabled"),
    "auto_reload": flag("auto_reload"),
    "health_check_interval": duration("health_interval", bare=None),
}


def read(document: Document, folder: Path) -> Reading:
    transcript = Transcript("otter", document, folder, Spelling(keys=KEYS))
    transcript.general(transcript.root.find("mcp"), GENERAL)
    transcript.list(transcript.root.find("mcp_servers"))
    transcript.list(transcript.root.find("mcp", "servers"))
    return transcript.reading()


def matches(document: Document) -> bool:
    root = document.root
    lists = (root.find("mcp", "servers"), root.find("mcp_servers"))
    return any(node is not None and is_list(node.value) for node in lists) or (
        document.format == "toml" and root.find("mcp") is not None
    )


def _container(root: Node) -> KeyPath:
    old = root.find("mcp_servers")
    return ("mcp_servers",) if old is not None and is_list(old.value) else ("mcp", "servers")


_SERVER = ("transport", "command", "args", "env", "url", "headers")
WRITING = WritingRules(
    keys=pick(KEYS, *_SERVER, "timeout", "enabled", "reconnect"),
    respell=as_is,
    container=_container,
    suffix=".toml",
    listed=True,
    name_key="name",
)
OTTER = Dialect(
    name="otter",
    title="otter",
    read=read,
    matches=matches,
    writing=WRITING,
    files=("otter.toml", "otter/config.toml"),
)
