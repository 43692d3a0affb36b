"""Durations as people write them: `30s`, `5m`, `1h`."""

import math
import re
from typing import Literal

Unit = Literal["ms", "s"]
EXAMPLES = '"30s", "1m30s" or "500ms"'

PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(PATTERN)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(value: object, *, bare: Unit | None = None) -> float:
    """Seconds in `value`: a text with units, or a number of `bare` units where a number is allowed.

    Raises:
        ValueError: The message says what was expected.
    """
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        parts = _PART.findall(value)
        # fractions are not exact: `100ms` and `200ms` would add up to 0.30000000000000004
        return round(sum(float(amount) * _SECONDS[unit] for amount, unit in parts), 9)
    if bare and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ValueError("expected a finite number")
        return value * _SECONDS[bare]
    raise ValueError(f"expected {expectation(bare)}")


def expectation(bare: Unit | None) -> str:
    match bare:
        case None:
            return f"a duration such as {EXAMPLES}"
        case "s":
            return f"a number of seconds or a duration such as {EXAMPLES}"
        case "ms":
            return f"a number of milliseconds or a duration such as {EXAMPLES}"


def spell(span: float, *, bare: Unit | None) -> float | str:
    """Seconds in a file's format: a number of `bare` units, or a text with its unit."""
    thousandths = round(span * 1000, 6)
    if bare is None:
        whole = thousandths % 1000 == 0
        return f"{span:.0f}s" if whole else f"{thousandths:.6f}".rstrip("0").rstrip(".") + "ms"
    number = thousandths if bare == "ms" else span
    return int(number) if number == int(number) else number
