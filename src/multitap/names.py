"""How a server's tool is named for callers."""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from enum import StrEnum
from hashlib import blake2s

MAX_LENGTH = 64  # the tightest limit among model providers
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


class Naming(StrEnum):
    """The shape of a name; `{server}_{tool}` unless told otherwise."""

    SERVER_TOOL = "{server}_{tool}"
    KODE = "{server}:{tool}"
    EXCELMANUS = "mcp_{server}_{tool}"
    CLAUDE = "mcp__{server}__{tool}"
    BARE = "{tool}"
