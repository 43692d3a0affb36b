"""What outlives the process: past calls, the log, and what servers last offered.

In: records, catalogs and chosen names, handed over without waiting. Out: the same, read back or
queried page by page. All SQL runs on one thread (`archive`), so the event loop never waits for a
disk; without a usable disk everything else goes on, and `warnings` says so. It must not know links
or hubs: they decide what to keep.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# not lazily: its module has the same name, and would be found in its place
from multitap.store.fingerprint import fingerprint

if TYPE_CHECKING:
    from multitap.store.call_records import CallRecord
    from multitap.store.log_query import Page
    from multitap.store.log_records import Activity, LogKind, LogRecord
    from multitap.store.store import Store, open_store
    from multitap.store.stored_catalogs import CatalogKey, StoredCatalog

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
    "CallRecord": "call_records",
    "CatalogKey": "stored_catalogs",
    "Activity": "log_records",
    "LogKind": "log_records",
    "LogRecord": "log_records",
    "Page": "log_query",
    "Store": "store",
    "StoredCatalog": "stored_catalogs",
    "open_store": "store",
}


def __getattr__(name: str) -> object:
    """Import names on first use: a command that writes one audit entry needs no event loop."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # later accesses find it directly
    return value
