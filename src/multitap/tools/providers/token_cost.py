"""Estimates the tokens that a tool's definition costs in every request."""

from typing import Any

import msgspec

BYTES_PER_TOKEN = 4.2
"""Bytes per token of English definitions with current tokenizers; precise enough for a budget."""


def estimate(value: Any) -> int:
    """The approximate number of tokens of a JSON value.

    No more than an estimate: tokenizers differ from model to model, and providers rewrite
    definitions before a model reads them.

    Raises:
        TypeError, ValueError, RecursionError: The value is not JSON.
    """
    return round(len(msgspec.json.encode(value)) / BYTES_PER_TOKEN)
