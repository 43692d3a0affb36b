"""What a tool's definition costs in every request, roughly."""

from typing import Any

import msgspec

BYTES_PER_TOKEN = 4.2
"""Measured with o200k_base over 1,314 definitions of 70 real servers: the sum comes out within two
percent, nine in ten single ones between 7 % below and 20 % above."""


def estimate(value: Any) -> int:
    """About how many tokens a JSON value costs.

    No more than an estimate: tokenizers differ from model to model, and providers rewrite
    definitions before a model reads them.

    Raises:
        TypeError, ValueError, RecursionError: The value is no JSON.
    """
    return round(len(msgspec.json.encode(value)) / BYTES_PER_TOKEN)
