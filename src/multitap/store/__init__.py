"""What outlives the process: past calls, and what servers last offered."""

from multitap.store.calls import CallRecord, Page
from multitap.store.catalogs import StoredCatalog
from multitap.store.fingerprint import fingerprint
from multitap.store.store import Store, open_store

__all__ = ["CallRecord", "Page", "Store", "StoredCatalog", "fingerprint", "open_store"]
