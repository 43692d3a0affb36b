"""Remembers whether each server's last start succeeded, so that good ones start first."""

from multitap.store.stored_catalogs import CatalogKey

MAX_OUTCOMES = 1024

TABLE = """
CREATE TABLE IF NOT EXISTS outcomes (
    server TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    saved_at REAL NOT NULL,
    is_up INTEGER NOT NULL,
    PRIMARY KEY (server, fingerprint)
)
"""
REPLACE = "REPLACE INTO outcomes (server, fingerprint, saved_at, is_up) VALUES (?, ?, ?, ?)"
SELECT = "SELECT server, fingerprint, is_up FROM outcomes"
TRIM = """
DELETE FROM outcomes WHERE rowid NOT IN
    (SELECT rowid FROM outcomes ORDER BY saved_at DESC LIMIT ?)
"""

Outcomes = dict[CatalogKey, bool]
"""Whether the last start succeeded, by server."""
