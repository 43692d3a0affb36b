"""Install links: the targets of buttons such as "Add to Cursor" in a README."""

import base64
import json
import re
from urllib.parse import parse_qs, unquote, urlsplit

from multitap.config.documents import is_list
from multitap.errors import ConfigError

_SCHEMES = frozenset({"cursor", "vscode", "vscode-insiders", "lmstudio", "kiro"})
_PAGES = re.compile(r".*(?:/install-mcp|/mcp/install|/mcp/add)/?")
"""Pages that redirect the browser to such a link."""


def is_install_link(address: str) -> bool:
    """Whether an address describes a server, instead of being one."""
    try:
        parts = urlsplit(_target(address))
    except ValueError:
        return False
    if parts.scheme in _SCHEMES:
        return True
    given = parse_qs(parts.query)
    return bool(_PAGES.fullmatch(parts.path)) and {"name", "config"} <= given.keys()


def _target(address: str) -> str:
    """Where a page such as `https://vscode.dev/redirect?url=vscode:…` leads."""
    parts = urlsplit(address)
    if not parts.path.rstrip("/").endswith("/redirect"):
        return address
    leads = parse_qs(parts.query).get("url", [""])[0]
    return leads if urlsplit(leads).scheme in _SCHEMES else address


def snippet_in(address: str) -> tuple[str | None, str]:
    """The name in an install link, if it has one, and the server as JSON.

    Raises:
        ConfigError: There is no server in it.
    """
    query = urlsplit(_target(address)).query
    given = {name: values[0] for name, values in parse_qs(query).items()}
    text = _json(given["config"]) if "config" in given else _json(unquote(query))
    if text is None:
        raise ConfigError(
            "there is no server in this link",
            hint="expected a name, and `config` in JSON or base64; was the whole link copied?",
        )
    # VS Code has inputs beside the server, where the snippet parser does not look
    if (asked := _list(given.get("inputs", ""))) is not None:
        text = json.dumps({**json.loads(text), "name": given.get("name", ""), "inputs": asked})
    return given.get("name"), text


def _json(text: str) -> str | None:
    """The JSON object in a text, plain or in base64."""
    return next((one for one in (text, _from_base64(text)) if _is_object(one)), None)


def _list(text: str) -> list[object] | None:
    """The inputs of VS Code, which are beside the server."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if is_list(value) else None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _from_base64(text: str) -> str:
    # links vary: URL-safe or not, with `+` decoded to a blank, without padding
    plain = text.replace(" ", "+").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4)).decode()
    except ValueError:
        return ""
