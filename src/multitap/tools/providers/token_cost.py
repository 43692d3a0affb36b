"""Estimates the tokens that a tool's definition costs in every request."""

from typing import Any

import msgspec

BYTES_PER_TOKEN = 4.2
"""What definitions in English come to with the tokenizers of today, near enough for a budget."""


def estimate(value: Any) -> int:
    """About how many tokens a JSON value costs.

    No more than an estimate: tokenizers differ from model to model, and providers rewrite
    definitions before a model reads them.

    Raises:
        TypeError, ValueError, RecursionError: The value is not JSON.
    """
    return round(len(msgspec.json.encode(value)) / BYTES_PER_TOKEN)
