"""Remembers which servers ask questions without naming the call they belong to."""

from multitap.store.stored_catalogs import CatalogKey

MAX_ASKING = 1024

TABLE = """
CREATE TABLE IF NOT EXISTS asking (
    server TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    saved_at REAL NOT NULL,
    PRIMARY KEY (server, fingerprint)
)
"""
REPLACE = "REPLACE INTO asking (server, fingerprint, saved_at) VALUES (?, ?, ?)"
SELECT = "SELECT server, fingerprint FROM asking"
TRIM = """
DELETE FROM asking WHERE rowid NOT IN
    (SELECT rowid FROM asking ORDER BY saved_at DESC LIMIT ?)
"""

Asking = set[CatalogKey]
"""Servers by name and fingerprint."""
