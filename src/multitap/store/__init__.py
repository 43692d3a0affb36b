"""What outlives the process: past calls, the log, and what servers last offered.

In: records, catalogs and chosen names, handed over without waiting. Out: the same, read back or
queried page by page. All SQL runs on one thread (`archive`), so the event loop never waits for a
disk; without a usable disk everything else goes on, and `warnings` says so. It must not know links
or hubs: they decide what to keep.
"""

from multitap.store.call_records import CallRecord, Page
from multitap.store.fingerprint import fingerprint
from multitap.store.log_records import Happening, Happenings, LogKind, LogRecord
from multitap.store.store import Store, open_store
from multitap.store.stored_catalogs import CatalogKey, StoredCatalog

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
