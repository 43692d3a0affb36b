"""Identifies a server across runs by its configuration."""

import json
from hashlib import sha256
from typing import Any, assert_never

from multitap.config.models import HttpServer, LocalServer, ServerConfig, StdioServer


def fingerprint(config: ServerConfig) -> str:
    """A digest of the command or URL, with the names of variables and headers."""
    canonical = json.dumps(_identity(config), sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()


def _identity(config: ServerConfig) -> dict[str, Any]:
    match config:
        case StdioServer():
            return {
                "transport": config.transport,
                "command": config.command,
                "args": config.args,
                "cwd": None if config.cwd is None else str(config.cwd),
                # names only: with a new token it is the same server, and no secret is hashed
                "env": sorted(config.env),
            }
        case HttpServer():
            return {
                "transport": config.transport,
                "url": config.url,
                "headers": sorted(name.lower() for name in config.headers),
            }
        case LocalServer():
            return {
                "transport": config.transport,
                "class": type(config.server).__qualname__,
                "name": str(getattr(config.server, "name", "")),
            }
        case _:
            assert_never(config)
