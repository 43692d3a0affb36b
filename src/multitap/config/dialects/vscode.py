"""VS Code: `servers` besides `inputs` and a sandbox."""

import re
from pathlib import Path

from multitap.config.dialects.dialect import Dialect, Spelling, Transcript
from multitap.config.dialects.draft import Reading
from multitap.config.dialects.mcp_servers import KEYS
from multitap.config.dialects.rewrites import only
from multitap.config.documents import Document, Node, is_table

_INPUT = re.compile(r"\$\{input:([^}$]+)\}")
_known = only("env:", "auth:", "config:", "userHome", "workspaceFolder", "pathSeparator}", "/}")


def _rewrite(text: str) -> str:
    """What VS Code asks for and keeps, we keep among the secrets."""
    return _known(_INPUT.sub(r"${auth:\1}", text))


CONTAINERS = (("servers",), ("mcp", "servers"), ("customizations", "vscode", "mcp", "servers"))


def read(document: Document, folder: Path) -> Reading:
    transcript = Transcript("vscode", document, folder, Spelling(KEYS, _rewrite))
    for container in CONTAINERS:
        transcript.table(transcript.root.find(*container))
    return transcript.reading()


def _is_server(node: Node) -> bool:
    return is_table(node.value) and (
        node.value.get("type") in ("stdio", "http", "sse")
        or isinstance(node.value.get("command"), str)
        or isinstance(node.value.get("url"), str)
    )


def matches(document: Document) -> bool:
    found = (document.root.find(*container) for container in CONTAINERS)
    return any(
        node is not None and any(_is_server(server) for _, server in node.members())
        for node in found
    )


VSCODE = Dialect("vscode", "VS Code", read, matches, (".vscode/mcp.json", "devcontainer.json"))
