"""Our own file, `multitap.toml`."""

from functools import partial
from pathlib import Path

from multitap.config.dialects.dialect import Dialect, Spelling, Transcript
from multitap.config.dialects.draft import Draft, Reading
from multitap.config.dialects.rules import (
    Rule,
    Rules,
    arguments,
    argv,
    duration,
    each,
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


def _naming(draft: Draft, node: Node) -> None:
    named = {naming.name.lower(): naming.value for naming in Naming}
    if (text := draft.text(node)) is not None:
        draft.set("naming", node, named.get(text, text))


def _agent(name: str) -> Rule:
    return members({key: strings("agents", name, key) for key in ("allow", "deny")})


SERVER: Rules = {
    "transport": one_of("stdio", "http", "streamable-http", "sse"),
    "enabled": flag("enabled"),
    "description": string("description"),
    "start": string("start"),
    "idle_timeout": duration("idle_timeout", bare="s"),
    "timeout": duration("timeout", bare="s"),
    "timeouts": each(partial(duration, "timeouts", bare="s"), "a table of durations"),
    "hard_timeout": duration("hard_timeout", bare="s"),
    "connect_timeout": duration("connect_timeout", bare="s"),
    "health_interval": duration("health_interval", bare="s"),
    "retry": string("retry"),
    "filter": members(FILTER),
    "result_cap": integer("result_cap"),
    "result_caps": each(partial(integer, "result_caps"), "a table of whole numbers"),
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
    "agents": each(_agent, "a table of agents"),
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
