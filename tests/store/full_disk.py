"""A disk without room, for this process: no file grows."""

import resource
from contextlib import contextmanager


@contextmanager
def full_disk():
    """Within the block, every write beyond the beginning of a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores SIGXFSZ, so a write fails with EFBIG instead of ending the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
