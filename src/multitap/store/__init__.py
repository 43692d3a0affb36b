"""What outlives the process: past calls, what else happened, and what servers last offered."""

from multitap.store.calls import CallRecord, Page
from multitap.store.catalogs import CatalogKey, StoredCatalog
from multitap.store.fingerprint import fingerprint
from multitap.store.logs import Happening, Happenings, LogKind, LogRecord
from multitap.store.store import Store, open_store

__all__ = [
    "CallRecord",
    "CatalogKey",
    "Happening",
    "Happenings",
    "LogKind",
    "LogRecord",
    "Page",
    "Store",
    "StoredCatalog",
    "fingerprint",
    "open_store",
]
