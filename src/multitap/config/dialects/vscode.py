"""VS Code: `servers` besides `inputs` and a sandbox."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from multitap.config.dialects.draft import Reading, only, respelling
from multitap.config.dialects.host_format import Dialect, Spelling, Transcript, WritingRules
from multitap.config.dialects.local_remote import OPENCODE_SPELLING, opencode_spelling_of
from multitap.config.dialects.mcp_servers import KEYS
from multitap.config.dialects.rules import oauth, pick, string, transport_as
from multitap.config.documents import Document, KeyPath, Node, is_list, is_table

_INPUT = re.compile(r"\$\{input:([^}$]+)\}")
_known = only("env:", "auth:", "config:", "userHome", "workspaceFolder", "pathSeparator}", "/}")


def _rewrite(text: str) -> str:
    """Maps inputs, which VS Code asks for and keeps, to secrets."""
    return _known(_INPUT.sub(r"${auth:\1}", text))


# `mcp.json`, `settings.json`, and `devcontainer.json`.
CONTAINERS = (("servers",), ("mcp", "servers"), ("customizations", "vscode", "mcp", "servers"))


def read(document: Document, folder: Path) -> Reading:
    transcript = Transcript(
        "vscode", document, folder, Spelling(keys=KEYS, rewrite=_rewrite), spelling_of=_spelling_of
    )
    # written by opencode; its entries keep it beside one of VS Code
    transcript.default(transcript.root.find("mcp", "timeout"), OPENCODE_SPELLING.keys, "timeout")
    for container in CONTAINERS:
        transcript.table(transcript.root.find(*container))
    return transcript.reading()


# In `settings.json`, opencode has its servers at the same place.
def _spelling_of(node: Node) -> Spelling | None:
    return opencode_spelling_of(node) if node.key[:-1] == CONTAINERS[1] else None


def _is_server(node: Node) -> bool:
    return is_table(node.value) and (
        node.value.get("type") in ("stdio", "http", "sse")
        or isinstance(node.value.get("command"), str)
        or isinstance(node.value.get("url"), str)
    )


def matches(document: Document) -> bool:
    containers = (document.root.find(*container) for container in CONTAINERS)
    return any(
        node is not None
        and any(_is_server(server) or _spelling_of(server) for _, server in node.members())
        for node in containers
    )


def _container(root: Node) -> KeyPath:
    return next((path for path in CONTAINERS if root.find(*path) is not None), CONTAINERS[0])


def _inputs(root: Node, entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[KeyPath, Any]]:
    """The inputs that the file must describe, so that VS Code asks for the secrets."""
    node = root.find("inputs")
    inputs = node.value if node and is_list(node.value) else []
    there = {entry.get("id") for entry in inputs if is_table(entry)}
    names = dict.fromkeys(_INPUT.findall(json.dumps([*entries], ensure_ascii=False)))
    for index, name in enumerate(name for name in names if name not in there):
        # always a password: in our own configuration, it is a secret of the vault
        question = {"type": "promptString", "id": name, "description": name, "password": True}
        yield ("inputs", len(inputs) + index), question


WRITING = WritingRules(
    keys={
        "type": transport_as(stdio="stdio", http="http", sse="sse"),
        **pick(KEYS, "command", "args", "cwd", "env", "envFile", "url", "headers"),
        "oauth": oauth({"clientId": string("oauth", "client_id")}),
    },
    respell=respelling(_rewrite, env="${env:%s}", folders=True, auth="${input:%s}"),
    container=_container,
    also=_inputs,
)
VSCODE = Dialect(
    name="vscode",
    title="VS Code",
    read=read,
    matches=matches,
    writing=WRITING,
    files=(".vscode/mcp.json", "devcontainer.json"),
)
