"""Masks the secrets of a configuration so that it can be shown."""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from multitap.config.documents import is_table
from multitap.config.secrets import (
    in_arguments,
    in_text,
    in_url,
    named_values,
    takes_secret,
    whole_value,
)

MASK = "********"
SECRET_TABLES = ("env", "headers")
SECRET_FIELDS = (
    "oauth.client_secret",
    "oauth.private_key",
    "oauth.assertion",
    "model.api_key",
)

_REFERENCE = re.compile(r"\$\{([^}]*)(\}?)")
_SCHEME = re.compile(r"(?:(?:Bearer|Basic|Token|ApiKey)\s+)?", re.IGNORECASE)


def masked(key: str, value: Any) -> Any:
    """The value of a field, by its dotted name, with possible secrets masked."""
    table, _, name = key.partition(".")
    if is_table(value):
        return {inner: masked(f"{key}.{inner}", member) for inner, member in value.items()}
    if key == "args":
        return masked_arguments(value)
    if not isinstance(value, str):
        return value
    if key == "command":
        return masked_words(value)
    if key.endswith(SECRET_FIELDS) or (table in SECRET_TABLES and name):
        return masked_text(value)
    return masked_url(value) if key.endswith("url") else value


def masked_text(text: str) -> str:
    """Variables stay visible, without their defaults; any other text is masked."""
    scheme = _SCHEME.match(text)
    start = scheme.end() if scheme else 0
    found = [*_REFERENCE.finditer(text, start)]
    alone = sum(len(match[0]) for match in found) == len(text) - start
    if not (found and alone and all(map(_is_reference, found))):
        return MASK if text else ""
    return text[:start] + "".join(map(_without_default, found))


def masked_url(url: str) -> str:
    """A URL without its password, query values and random-looking parts of the path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    place = parts.netloc.rpartition("@")
    host = f"{MASK}@{place[2]}" if place[1] else parts.netloc
    query = re.sub(r"=[^&]+", f"={MASK}", parts.query)
    path = _without(parts.path, in_url(parts.path))
    return urlunsplit((parts.scheme, host, path, query, ""))


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """Arguments without the values of options with telling names."""
    shown: list[str] = []
    before = ""
    for argument in arguments:
        if takes_secret(before, argument):
            shown.append(masked_text(argument))
        elif (value := whole_value(before, argument)) is not None:
            shown.append(argument.removesuffix(value) + masked_text(value))
        else:
            shown.append(_without(masked_words(argument), in_arguments((before, argument))))
        before = argument
    return shown


def masked_words(text: str) -> str:
    """A text without the values of telling names in it, and without what looks like a secret."""
    last = len(text)
    for start, end in sorted({*named_values(text)}, reverse=True):
        if end <= last:  # otherwise it contains one that is masked
            text = f"{text[:start]}{masked_text(text[start:end])}{text[end:]}"
            last = start
    return _without(text, in_text(text))


def _without(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted({*secrets}, key=len, reverse=True):
        if MASK not in secret:
            text = text.replace(secret, MASK)
    return text


def _is_reference(match: re.Match[str]) -> bool:
    name = match[1].partition(":-")[0]
    return bool(match[2]) and name.count(":") <= 1


def _without_default(match: re.Match[str]) -> str:
    name, sign, _ = match[1].partition(":-")
    return f"${{{name}{sign + MASK if sign else ''}}}"
