"""Continue: a list of servers, each with its name."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from multitap.config.dialects.draft import Draft, Reading, respelling, secrets
from multitap.config.dialects.host_format import Dialect, Spelling, Transcript, WritingRules, within
from multitap.config.dialects.mcp_servers import KEYS as FAMILY_KEYS
from multitap.config.dialects.rules import (
    Rules,
    duration,
    ignore,
    members,
    nothing,
    pick,
    table,
    transport,
    transport_as,
    unsupported,
)
from multitap.config.documents import Document, KeyPath, Node, is_list, is_table


def _key(draft: Draft, node: Node) -> None:
    if (text := draft.text(node)) is not None:
        draft.set(("headers", "Authorization"), node, f"Bearer {text}")


# A file must not be able to switch off the check that keeps tokens from a man in the middle.
def _verify(draft: Draft, node: Node) -> None:
    if node.value is False:
        unsupported("certificates are always verified here")(draft, node)


_REQUEST: Rules = {
    "headers": table("headers"),
    "timeout": duration("timeout", bare="ms"),
    "verifySsl": _verify,
    "caBundlePath": unsupported("not supported; set SSL_CERT_FILE instead"),
    "proxy": unsupported("not supported; set HTTPS_PROXY instead"),
    **dict.fromkeys(("noProxy", "clientCertificate", "extraBodyProperties"), ignore),
}


def _transport(draft: Draft, node: Node) -> None:
    """A word, or in older files a table with everything about the connection."""
    rule = members(KEYS) if is_table(node.value) else transport
    rule(draft, node)


KEYS: Rules = {
    **FAMILY_KEYS,
    "name": nothing,
    "transport": _transport,
    "apiKey": _key,
    "requestOptions": members(_REQUEST),
    "connectionTimeout": duration("connect_timeout", bare="ms"),
    "timeout": duration("timeout", bare="ms"),
    **dict.fromkeys(("faviconUrl", "sourceFile"), ignore),
}


def read(document: Document, folder: Path) -> Reading:
    transcript = Transcript("continue", document, folder, Spelling(keys=KEYS, rewrite=secrets))
    # The older `config.json` has servers without names, under `experimental`.
    old = transcript.root.find("experimental", "modelContextProtocolServers")
    transcript.list(old, unnamed="mcp")
    servers = transcript.root.find("mcpServers")
    if servers is not None and is_table(servers.value):  # a JSON file of another client
        transcript.table(servers)
    else:
        transcript.list(servers)
    return transcript.reading()


def matches(document: Document) -> bool:
    root = document.root
    lists = (root.find("mcpServers"), root.find("experimental", "modelContextProtocolServers"))
    return any(node is not None and is_list(node.value) for node in lists)


def _heading(root: Node, _entries: Iterable[Mapping[str, Any]]) -> Iterable[tuple[KeyPath, Any]]:
    """Continue refuses a file without a name and a version."""
    new = () if root.value else (("name", "Local"), ("version", "1.0.0"), ("schema", "v1"))
    return [((key,), text) for key, text in new]


WRITING = WritingRules(
    keys={
        "type": transport_as(stdio="stdio", streamable_http="streamable-http", sse="sse"),
        **pick(KEYS, "command", "args", "env", "cwd", "url"),
        "requestOptions": members(pick(_REQUEST, "headers", "timeout")),
        "connectionTimeout": KEYS["connectionTimeout"],
    },
    respell=respelling(secrets, env="${{ secrets.%s }}"),
    container=within("mcpServers"),
    suffix=".yaml",
    listed=True,
    name_key="name",
    also=_heading,
)
CONTINUE = Dialect(
    name="continue",
    title="Continue",
    read=read,
    matches=matches,
    writing=WRITING,
    files=(".continue/config.yaml", ".continue/mcpServers/*.yaml"),
)
