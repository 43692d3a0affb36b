"""What outlives the process: past calls, the log, and what servers last offered.

In: records, catalogs and chosen names, handed over without waiting. Out: the same, read back or
queried page by page. All SQL runs on one thread (`database.Archive`), so the event loop never waits
for a disk; without a usable disk everything else goes on, and `warnings` says so. It must not know
links or hubs: they decide what to keep.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multitap.store.queries import Page
    from multitap.store.store import Store, open_store
    from multitap.store.tables import (
        Activity,
        CallRecord,
        CatalogKey,
        LogKind,
        LogRecord,
        StoredCatalog,
        fingerprint,
    )

__all__ = [
    "Activity",
    "CallRecord",
    "CatalogKey",
    "LogKind",
    "LogRecord",
    "Page",
    "Store",
    "StoredCatalog",
    "fingerprint",
    "open_store",
]

_MODULES = {
    "CallRecord": "tables",
    "CatalogKey": "tables",
    "Activity": "tables",
    "LogKind": "tables",
    "LogRecord": "tables",
    "Page": "queries",
    "Store": "store",
    "StoredCatalog": "tables",
    "fingerprint": "tables",
    "open_store": "store",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Import names on first use: a command that writes one audit entry needs no event loop."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # later accesses find it directly
    return value
