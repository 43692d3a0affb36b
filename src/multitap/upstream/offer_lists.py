"""Fetches everything a server offers, page by page, with limits."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any

import anyio
from msgspec import Raw

from multitap.faults import AnswerInvalid, AnswerTimeout
from multitap.records import dataclass
from multitap.wire.jsonrpc import envelope

# servers control the lists: cursors may be endless, or repeat
MAX_PAGES = 250
MAX_SECONDS = 30.0

Definition = dict[str, Any]
"""One tool, resource, template or prompt as the server describes it; never changed."""

Ask = Callable[[dict[str, Any]], Awaitable[Raw]]


@dataclass(frozen=True, slots=True)
class Offers:
    """The offers of one server."""

    tools: tuple[Definition, ...] = ()
    resources: tuple[Definition, ...] = ()
    templates: tuple[Definition, ...] = ()
    prompts: tuple[Definition, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a list could not be fetched, by its key; its items are from before."""

    def by_key(self) -> dict[str, tuple[Definition, ...]]:
        """The lists by their names in the protocol."""
        return {
            "tools": self.tools,
            "resources": self.resources,
            "resourceTemplates": self.templates,
            "prompts": self.prompts,
        }


@dataclass(slots=True)
class Pages:
    """The items of a list so far, and warnings about it."""

    items: list[Definition] = field(default_factory=list[Definition])
    warnings: list[str] = field(default_factory=list[str])


async def fetch(ask: Ask, key: str, limit: int) -> Pages:
    """Fetch all pages of one list; an endless one is cut off, with a warning.

    Args:
        ask: Sends the list request with the given parameters.
        key: The key of the items in a page, such as `tools`.
        limit: The most items.

    Raises:
        AnswerInvalid: An answer is not a page of the list.
        AnswerTimeout: The first page did not arrive in time.
    """
    pages = Pages()
    seen: set[str] = set()
    params: dict[str, Any] = {}
    with anyio.move_on_after(MAX_SECONDS) as clock:
        for _ in range(MAX_PAGES):
            page = _decode(await ask(params), key)
            _take(page[key], key, pages)
            cursor = page.get("nextCursor")
            if len(pages.items) >= limit:
                if cursor is not None or len(pages.items) > limit:
                    pages.warnings.append(f"only the first {limit:,} {key} are used")
                del pages.items[limit:]
                return pages
            if not isinstance(cursor, str):  # an empty string is a cursor like any other
                if cursor is not None:
                    pages.warnings.append(f"the next page of the list of {key} cannot be requested")
                return pages
            if cursor in seen:
                pages.warnings.append(f"the list of {key} repeats itself and was cut off")
                return pages
            seen.add(cursor)
            params = {"cursor": cursor}
        pages.warnings.append(f"the list of {key} has over {MAX_PAGES} pages and was cut off")
    if clock.cancelled_caught:
        if not seen:
            raise AnswerTimeout(f"the list of {key} took over {MAX_SECONDS:g} s", sent=True)
        pages.warnings.append(f"the list of {key} took over {MAX_SECONDS:g} s and was cut off")
    return pages


_KINDS: dict[type[object], str] = {
    str: "a text",
    dict: "an object",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}


def _decode(result: Raw, key: str) -> dict[str, Any]:
    try:
        page: dict[str, Any] = envelope.decode(result)
    except envelope.UNPARSABLE as exc:
        raise AnswerInvalid(f"the list of {key} cannot be read: {exc}", sent=True) from None
    if key not in page:
        raise AnswerInvalid(f"the list of {key} has no {key!r}", sent=True)
    items: object = page[key]
    if not isinstance(items, list):
        kind = _KINDS.get(type(items), "null")
        raise AnswerInvalid(f"{key!r} in the list of {key} is {kind}, not an array", sent=True)
    return page


def _take(items: list[Any], key: str, pages: Pages) -> None:
    for item in items:
        if isinstance(item, dict):
            pages.items.append(item)  # pyright: ignore[reportUnknownArgumentType]
        else:
            pages.warnings.append(f"an entry of {key} is not an object and was skipped")
