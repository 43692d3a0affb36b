"""What a server offers: its lists, fetched page by page with limits, and fetched again."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeGuard

import anyio
import msgspec
from msgspec import Raw

from multitap.config.models import ServerConfig
from multitap.errors import AnswerInvalid, AnswerTimeout, RequestFailed, ungrouped
from multitap.events import Warned
from multitap.tasks import Bell, now
from multitap.trust.lock_file import canonical
from multitap.upstream.report import ServerReport
from multitap.upstream.session import Session
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import RpcError

# servers control the lists: cursors may be endless, or repeat
MAX_PAGES = 250
MAX_SECONDS = 30.0
EXTRA_TIMEOUT = 5.0
"""Seconds for each list other than tools."""

_HEADER_MARK = jsonrpc.ARGUMENT_HEADER_KEY.encode()

LEAST_LIFETIME = 5.0
"""Seconds before a list may be fetched again because somebody asks for it."""
MAX_TTL = 24 * 3_600_000
"""Milliseconds that a list stays fresh at most, whatever its server says."""
UNSAID_LIFETIME = 60.0
"""Seconds after which that is done at servers that tell neither of lifetimes nor of changes."""

Definition = dict[str, Any]
"""One tool, resource, template or prompt as the server describes it; never changed."""

Ask = Callable[[dict[str, Any]], Awaitable[Raw]]


class Offers(msgspec.Struct, frozen=True, kw_only=True):
    """The offers of one server."""

    tools: tuple[Definition, ...] = ()
    resources: tuple[Definition, ...] = ()
    templates: tuple[Definition, ...] = ()
    prompts: tuple[Definition, ...] = ()
    capabilities: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Extensions, experiments and whatever else it declares that MCP does not define."""
    warnings: tuple[str, ...] = ()
    missing: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Why a list could not be fetched, by its key; its items are from before."""

    def by_key(self) -> dict[str, tuple[Definition, ...]]:
        """The lists by their names in the protocol."""
        return {
            "tools": self.tools,
            "resources": self.resources,
            "resourceTemplates": self.templates,
            "prompts": self.prompts,
        }


class Lifetime(msgspec.Struct, frozen=True):
    """How long a list stays fresh, as its server says."""

    ttl: int | None
    """Milliseconds; None in the handshake era, which has no lifetimes."""
    is_public: bool
    """Whether everybody gets the same list."""
    since: float
    """When it was fetched."""

    @property
    def rest(self) -> int:
        """Milliseconds for which it is still fresh."""
        return max(0, (self.ttl or 0) - round(1000 * (now() - self.since)))

    def has_expired(self, *, announces: bool) -> bool:
        """Whether the list should be fetched again when somebody asks for it.

        `announces` tells whether the server says when it changes: then no lifetime means nothing.
        """
        if not self.ttl and announces:
            return False
        least = UNSAID_LIFETIME if self.ttl is None else max(self.ttl / 1000, LEAST_LIFETIME)
        return now() - self.since >= least


class Listing:
    """Owns the offers of one server, which outlive its sessions."""

    def __init__(
        self,
        config: ServerConfig,
        offers: Offers | None,
        report: ServerReport,
        on_change: Callable[[], None],
    ) -> None:
        self.offers = offers
        self.is_stale = offers is not None
        """Whether the offers are from an earlier run or session."""
        self.lifetimes: Mapping[str, Lifetime] = {}
        """How fresh the lists are, by their keys."""
        self.refetched = Bell()
        """Rings when the lists were fetched again, or could not be."""
        self._config = config
        self._report = report
        self._on_change = on_change
        self._warning: str | None = None

    def expect(self, offers: Offers | None) -> None:
        """Use the offers of its predecessor until it is up itself."""
        self.offers = offers
        self.is_stale = offers is not None

    def on_connected(self, offers: Offers) -> None:
        """Use the offers that the server has just listed."""
        self.offers = offers
        self.is_stale = False

    @property
    def is_complete(self) -> bool:
        return self.offers is None or not self.offers.missing

    @property
    def warnings(self) -> list[str]:
        own = [self._warning] if self._warning else []
        own += (
            f"its {key} could not be fetched and will be requested again: {why}"
            for key, why in (self.offers or Offers()).missing.items()
        )
        return own

    async def refetch(self, session: Session, *, changed: bool) -> bool:
        """Fetch the offers again; returns whether all lists succeeded. Failed ones keep old offers.

        If no list may have changed, only missing ones are fetched.
        """
        if self.offers is None or session.wire.closed.is_set():
            return True
        whole = changed or self._warning is not None
        try:
            offers = await self.fetch(session, None if whole else self.offers.missing)
        except (RpcError, AnswerInvalid, AnswerTimeout, RequestFailed) as exc:
            warning = f"its changed lists cannot be fetched: {exc}"
            if warning != self._warning:  # once, however often it fails
                self._warning = warning
                self._report.tell(Warned(self._report.name, warning))
            return False
        finally:
            self.refetched.ring()
        has_changed, self._warning = self._warning is not None or offers != self.offers, None
        if has_changed:  # or everybody would compare equal lists
            self.offers = offers
            self._on_change()
        return not offers.missing

    async def fetch(self, session: Session, only: Collection[str] | None = None) -> Offers:
        """Fetch all lists that the server announces, in parallel; with `only`, just these.

        Lists that cannot be fetched or are not in `only` stay as they were.

        Raises:
            RpcError: It refuses to list its tools.
            WireFault: The list of tools cannot be fetched.
        """
        limit, timeout = self._config.limits.tools, self._config.connect_timeout
        announced = _announced_lists(session)
        methods = {key: method for key, method in announced.items() if only is None or key in only}
        fetched: dict[str, Pages] = {}
        missing: dict[str, str] = {}

        async def fetch_optional(key: str, method: str) -> None:
            try:
                fetched[key] = await _fetch_or_warn(
                    session, method, key, limit, min(timeout / 2, EXTRA_TIMEOUT)
                )
            except (AnswerTimeout, RequestFailed, RpcError) as exc:
                missing[key] = str(exc)

        with ungrouped():
            async with anyio.create_task_group() as tasks:
                # in this task: a server that cannot list its tools is unusable, so this error ends
                # all lists
                tools_method = methods.pop("tools", None)
                for key, method in methods.items():
                    tasks.start_soon(fetch_optional, key, method)
                if tools_method is not None:
                    fetched["tools"] = await _fetch_list(
                        session, tools_method, "tools", limit, timeout
                    )
        if (tools := fetched.get("tools")) is not None:
            tools.items, warnings = session.learn_headers(tools.items, is_marked=tools.is_marked)
            tools.warnings += warnings
        ages = {key: pages.lifetime for key, pages in fetched.items()}
        self.lifetimes = {**self.lifetimes, **{key: age for key, age in ages.items() if age}}
        before = self.offers or Offers()
        items_before = before.by_key()

        def items(key: str) -> tuple[Definition, ...]:
            if key in fetched:
                redacted = map(self._report.redact.data, fetched[key].items)
                return _share([item for item in redacted if _is_object(item)], items_before[key])
            return items_before[key] if key in announced else ()

        return Offers(
            tools=items("tools"),
            resources=items("resources"),
            templates=items("resourceTemplates"),
            prompts=items("prompts"),
            capabilities=self._report.redact.data(session.capabilities.others),
            warnings=(
                *(() if only is None else before.warnings),
                *(warning for pages in fetched.values() for warning in pages.warnings),
            ),
            missing=missing,
        )


class Pages(msgspec.Struct):
    """The items of a list so far, and warnings about it."""

    items: list[Definition] = msgspec.field(default_factory=list[Definition])
    warnings: list[str] = msgspec.field(default_factory=list[str])
    is_marked: bool = False
    """Whether arguments of tools may have to be sent as headers."""
    lifetime: Lifetime | None = None
    """That of the page that is stale first."""

    def limit(self, page: Mapping[str, Any]) -> None:
        """Take the lifetime of one more page."""
        ttl = page.get("ttlMs")
        # numbers without a limit would not fit into the answers to clients
        valid = max(0, min(int(ttl), MAX_TTL)) if isinstance(ttl, int | float) else None
        is_public, before = page.get("cacheScope") == "public", self.lifetime
        if before is None:
            self.lifetime = Lifetime(valid, is_public, now())
        else:
            ttl = None if valid is None or before.ttl is None else min(valid, before.ttl)
            self.lifetime = Lifetime(ttl, is_public and before.is_public, before.since)


def _announced_lists(session: Session) -> dict[str, str]:
    """The methods of the announced lists, by the key of their items."""
    can = session.capabilities
    methods: dict[str, str] = {}
    if can.tools:
        methods["tools"] = "tools/list"
    if can.resources:
        methods["resources"] = "resources/list"
        methods["resourceTemplates"] = "resources/templates/list"
    if can.prompts:
        methods["prompts"] = "prompts/list"
    return methods


async def _fetch_or_warn(
    session: Session, method: str, key: str, limit: int, timeout: float
) -> Pages:
    """Fetch an optional list; many servers announce lists that they do not have.

    Raises:
        AnswerTimeout, RequestFailed, RpcError: It may succeed later.
    """
    try:
        return await _fetch_list(session, method, key, limit, timeout)
    except RpcError as exc:
        if exc.code == jsonrpc.INTERNAL_ERROR:
            raise  # an internal error, which may be temporary; other errors are final
        warnings = [] if exc.code == jsonrpc.METHOD_NOT_FOUND else [f"no {key}: {exc}"]
        return Pages(warnings=warnings)
    except AnswerInvalid as exc:
        return Pages(warnings=[f"no {key}: {exc}"])


async def _fetch_list(session: Session, method: str, key: str, limit: int, timeout: float) -> Pages:
    async def ask(params: dict[str, Any]) -> Raw:
        return await session.ask(method, params, timeout=timeout)

    return await fetch(ask, key, limit)


async def fetch(ask: Ask, key: str, limit: int) -> Pages:
    """Fetch all pages of one list; an endless one is cut off, with a warning.

    `key` is the key of the items in a page, such as `tools`.

    Raises:
        AnswerInvalid: An answer is not a page of the list.
        AnswerTimeout: The first page did not arrive in time.
    """
    pages = Pages()
    seen: set[str] = set()
    params: dict[str, Any] = {}
    with anyio.move_on_after(MAX_SECONDS) as clock:
        for _ in range(MAX_PAGES):
            result = await ask(params)
            pages.is_marked |= _HEADER_MARK in bytes(result)
            page = _decode(result, key)
            _collect(page[key], key, pages)
            pages.limit(page)
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
        page: dict[str, Any] = jsonrpc.decode(result)
    except jsonrpc.UNPARSABLE as exc:
        raise AnswerInvalid(f"the list of {key} cannot be read: {exc}", sent=True) from None
    if key not in page:
        raise AnswerInvalid(f"the list of {key} has no {key!r}", sent=True)
    items: object = page[key]
    if not isinstance(items, list):
        kind = _KINDS.get(type(items), "null")
        raise AnswerInvalid(f"{key!r} in the list of {key} is {kind}, not an array", sent=True)
    return page


def _is_object(value: Any) -> TypeGuard[Definition]:
    return isinstance(value, dict)


def _share(items: list[Definition], before: tuple[Definition, ...]) -> tuple[Definition, ...]:
    """The items; an unchanged one is the object of before, which needs no other check."""
    if not before:
        return tuple(items)
    try:
        # by their bytes: Python takes 1 and True for equal
        same = {canonical(item): item for item in before}
        return tuple(same.get(canonical(item), item) for item in items)
    except RecursionError:  # nested as deeply as can be read
        return tuple(items)


def _collect(items: list[Any], key: str, pages: Pages) -> None:
    for item in items:
        if isinstance(item, dict):
            pages.items.append(item)  # pyright: ignore[reportUnknownArgumentType]
        else:
            pages.warnings.append(f"an entry of {key} is not an object and was skipped")
