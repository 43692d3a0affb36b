"""Regular expressions that every provider interprets the same way."""

import re
import warnings

# Compiled in our process, from a server's schema.
_LONGEST = 1_000
_PECULIAR = re.compile(r"\(\?|\\[pPkKuxGAZzbB1-9]|\[\[:")


def portable(pattern: object) -> bool:
    """Whether a pattern has nothing that some engine refuses, such as looking around."""
    return (
        isinstance(pattern, str)
        # a group that captures nothing is the one form of `(?` that all engines read
        and _PECULIAR.search(pattern.replace("(?:", "(")) is None
        and compiles(pattern)
    )


def compiles(pattern: str) -> bool:
    """Whether Python reads it, as OpenAI's own check does."""
    if len(pattern) > _LONGEST:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python may read otherwise one day
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            return False
    return True
