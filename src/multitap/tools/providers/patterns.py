"""Regular expressions that every provider interprets the same way."""

import re
import warnings

# Compiled in our process, from a server's schema.
_LONGEST = 1_000
_PECULIAR = re.compile(r"\(\?|\\[pPkKuxGAZzbB1-9]|\[\[:")


def portable(pattern: object) -> bool:
    """Whether all engines accept a pattern: it has no look-around or similar."""
    return (
        isinstance(pattern, str)
        # a non-capturing group is the only form of `(?` that all engines accept
        and _PECULIAR.search(pattern.replace("(?:", "(")) is None
        and compiles(pattern)
    )


def compiles(pattern: str) -> bool:
    """Whether Python accepts it, which OpenAI's own check requires."""
    if len(pattern) > _LONGEST:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # syntax whose meaning Python may change
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            return False
    return True
