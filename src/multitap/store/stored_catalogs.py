"""What each server last offered, so that it can be listed before it starts."""

from typing import Any

import msgspec

# a changed configuration counts as another server: old ones are rarely needed
MAX_CATALOGS = 256

TABLE = """
CREATE TABLE IF NOT EXISTS catalogs (
    server TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    saved_at REAL NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (server, fingerprint)
)
"""
REPLACE = "REPLACE INTO catalogs (server, fingerprint, saved_at, body) VALUES (?, ?, ?, ?)"
SELECT = "SELECT server, fingerprint, saved_at, body FROM catalogs"
TRIM = """
DELETE FROM catalogs WHERE rowid NOT IN
    (SELECT rowid FROM catalogs ORDER BY saved_at DESC LIMIT ?)
"""

Definition = dict[str, Any]
CatalogKey = tuple[str, str]
"""A server's name and its fingerprint."""


class StoredCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """One server's offers at its last good connection."""

    era: str
    """Its protocol era."""
    protocol_version: str | None = None
    tools: list[Definition] = []
    resources: list[Definition] = []
    templates: list[Definition] = []
    prompts: list[Definition] = []
    instructions: str | None = None
    title: str | None = None
    saved_at: float = 0.0
    """Seconds since the epoch."""


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(StoredCatalog).decode
