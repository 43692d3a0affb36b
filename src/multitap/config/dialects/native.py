"""Our own file, `multitap.toml`."""

from pathlib import Path

from multitap.config.dialects.dialect import Dialect, Spelling, Transcript
from multitap.config.dialects.draft import Draft, Reading
from multitap.config.dialects.rules import (
    Rules,
    arguments,
    argv,
    duration,
    env,
    flag,
    integer,
    members,
    nothing,
    oauth,
    one_of,
    path,
    program,
    string,
    strings,
    table,
)
from multitap.config.documents import Document, Node, is_list, is_table
from multitap.names import Naming

FILTER = {"allow": strings("filter", "allow"), "deny": strings("filter", "deny")}
OAUTH: Rules = {
    "client_id": string("oauth", "client_id"),
    "client_secret": string("oauth", "client_secret"),
    "scope": string("oauth", "scope"),
    "callback_port": integer("oauth", "callback_port"),
    "redirect_uri": string("oauth", "redirect_uri"),
    "metadata_url": string("oauth", "metadata_url"),
}
LIMITS: Rules = {
    name: integer("limits", name) for name in ("message", "in_flight", "queue", "tools")
}


def _command(draft: Draft, node: Node) -> None:
    (argv if is_list(node.value) else program)(draft, node)


def _caps(draft: Draft, node: Node) -> None:
    for tool, member in node.members():
        integer("result_caps", tool)(draft, member)
    if not is_table(node.value):
        draft.wrong(node, "a table of whole numbers")


def _naming(draft: Draft, node: Node) -> None:
    named = {naming.name.lower(): naming.value for naming in Naming}
    if (text := draft.text(node)) is not None:
        draft.set("naming", node, named.get(text, text))


def _agents(draft: Draft, node: Node) -> None:
    if not is_table(node.value):
        draft.wrong(node, "a table of agents")
    for agent, member in node.members():
        rules = {key: strings("agents", agent, key) for key in ("allow", "deny")}
        members(rules)(draft, member)


SERVER: Rules = {
    "transport": one_of("stdio", "http", "streamable-http", "sse"),
    "enabled": flag("enabled"),
    "description": string("description"),
    "start": string("start"),
    "idle_timeout": duration("idle_timeout", bare="s"),
    "timeout": duration("timeout", bare="s"),
    "hard_timeout": duration("hard_timeout", bare="s"),
    "connect_timeout": duration("connect_timeout", bare="s"),
    "health_interval": duration("health_interval", bare="s"),
    "retry": string("retry"),
    "filter": members(FILTER),
    "result_cap": integer("result_cap"),
    "result_caps": _caps,
    "limits": members(LIMITS),
    "era": string("era"),
    "command": _command,
    "args": arguments,
    "env": env,
    "env_file": path("env_file"),
    "cwd": path("cwd"),
    "url": string("url"),
    "headers": table("headers"),
    "oauth": oauth(OAUTH),
}
SERVE: Rules = {
    "enabled": flag("serve", "enabled"),
    "transport": string("serve", "transport"),
    "host": string("serve", "host"),
    "port": integer("serve", "port"),
}


GENERAL: Rules = {
    "servers": nothing,
    "$schema": nothing,
    "enabled": flag("enabled"),
    "auto_reload": flag("auto_reload"),
    "serve": members(SERVE),
    "agents": _agents,
    "naming": _naming,
    "health_interval": duration("health_interval", bare="s"),
    "start_concurrency": integer("start_concurrency"),
    "result_cap": integer("result_cap"),
    "drain_timeout": duration("drain_timeout", bare="s"),
    "state_dir": path("state_dir"),
}
SPELLING = Spelling(SERVER, beside_file=True)


def read(document: Document, folder: Path) -> Reading:
    transcript = Transcript("multitap", document, folder, SPELLING)
    transcript.general(transcript.root, GENERAL)
    transcript.table(transcript.root.find("servers"))
    return transcript.reading()


def matches(document: Document) -> bool:
    servers = document.root.find("servers")
    if document.format != "toml":
        return False
    return is_table(servers.value) if servers else bool(GENERAL.keys() & document.root.value.keys())


MULTITAP = Dialect("multitap", "Multitap", read, matches, ("multitap.toml",))
