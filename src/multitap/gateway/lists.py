"""What clients list: page by page, no staler than their servers allow, and with a lifetime."""

import base64
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.audience import EVERYBODY, Audience
from multitap.config.documents import is_list, is_table
from multitap.errors import MultitapError
from multitap.events import LinkState
from multitap.gateway.client import DEFERRING, ClientRequest
from multitap.gateway.view import GROUPING, LISTS, View, group_name, in_groups
from multitap.principal import Principal
from multitap.trust.single_use import Seal, bind
from multitap.upstream.link import Link
from multitap.upstream.questions import NOBODY
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import INVALID_PARAMS, UNPARSABLE, Result, RpcError, parse_table, text_of
from multitap.wire.request import make_request

PATIENCE = 1.0
"""Seconds that a client waits for lists that are fetched again; then it gets the old ones."""
LONGEST_TTL = 300_000
"""Milliseconds that a list stays fresh at most: servers are added and removed, too."""
_GROUP_PATIENCE = 5.0  # seconds: without an answer, a server is listed without its own groups
_LONG = 64 * 1024
"""Bytes above which a page is sent without a copy."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a page begins."""

    after: int
    """How many entries precede it."""
    last: str = ""
    """The last of these."""


class Cursors:
    """Seals where pages begin, for one principal and one method."""

    def __init__(self, seal: Callable[[], Seal]) -> None:
        self._seal = seal

    def seal(self, cursor: Cursor, method: str, principal: Principal) -> str:
        sealed = self._seal().seal(msgspec.msgpack.encode(cursor), _purpose(method, principal))
        return base64.urlsafe_b64encode(sealed).decode()

    def read(self, params: Raw, method: str, principal: Principal) -> Cursor:
        """The cursor of a request; the start of the list if it has none.

        Raises:
            RpcError: It was made for another list or another client, or not by us.
        """
        raw = parse_table(params).get("cursor") if len(params) else None
        if raw is None or bytes(raw) == b"null":
            return Cursor(0)
        try:
            sealed = base64.b64decode(text_of(raw) or "", b"-_", validate=True)
        except ValueError:
            sealed = b""
        opened = self._seal().unseal(sealed, _purpose(method, principal)) if sealed else None
        if opened is None:
            hint = "list again from the start"
            message = f"this cursor is not valid; {hint}"
            raise RpcError(INVALID_PARAMS, message, {"reason": "invalid_cursor", "hint": hint})
        return msgspec.msgpack.decode(opened.data, type=Cursor)


def _purpose(method: str, principal: Principal) -> str:
    # sealed for one principal: a cursor tells what another client's list contains
    return f"cursor {method} {bind(principal.key).hex()}"


class ClientLists:
    """Answers the list requests of clients."""

    def __init__(
        self,
        view: Callable[[Audience], View],
        cursors: Cursors,
        wait_complete: Callable[[Audience], Awaitable[None]],
    ) -> None:
        self._view = view
        self._cursors = cursors
        self._wait_complete = wait_complete
        self.methods: dict[str, Callable[[ClientRequest, Raw], Awaitable[Result]]] = {
            **{method: partial(self._list, method) for method in LISTS},
            "groups/list": self._list_groups,
        }

    async def _list(self, method: str, request: ClientRequest, params: Raw) -> Result:
        audience = request.client.audience
        cursor = self._cursors.read(params, method, request.principal)
        await self._wait_complete(audience)
        if not cursor.after:  # a list that is being read does not change on purpose
            await _refresh(self._view(audience), LISTS[method])
        view = self._view(audience)
        pages = view.list_pages(
            method,
            stateless=request.is_stateless,
            defers=view.lists_by_size and request.program in DEFERRING,
        )
        page, following = pages.after(cursor.after, cursor.last)
        head = _head(request, view, LISTS[method]) if request.is_stateless else b"{"
        tail = b"}"
        if following is not None:
            sealed = self._cursors.seal(Cursor(following, page.last), method, request.principal)
            tail = b',"nextCursor":"%b"}' % sealed.encode()
        parts = (head, page.body, tail)
        return parts if len(page.body) > _LONG else b"".join(parts)

    async def _list_groups(self, request: ClientRequest, _: Raw) -> Result:
        """Each server is a group, and contains the groups that it has itself."""
        audience = request.client.audience
        await self._wait_complete(audience)
        view = self._view(audience)
        entries = (view.tools, view.prompts, view.resources, view.templates)
        servers = {entry.server for table in entries for entry in table.values()}
        groups: list[dict[str, Any]] = []
        for link in _links(view):
            if link.name in servers:
                session, description = link.session, link.config.description
                texts = {"title": session and session.title, "description": description}
                about = {key: text for key, text in texts.items() if text}
                groups += [{"name": link.name, **about}, *await _groups_of(link)]
        content: dict[str, Any] = {"groups": groups}
        if request.is_stateless:
            fresh = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            return jsonrpc.encode({**fresh, **content})
        return jsonrpc.encode(content)


async def _refresh(view: View, key: str) -> None:
    """Have lists that are no longer fresh fetched again."""
    if not (stale := [link for link in _links(view) if _is_stale(link, key)]):
        return
    # before the lists are requested: one that is fetched at once must not be missed
    coming = [link.listing.refetched.coming() for link in stale]
    for link in stale:
        link.notifications.request_lists()
    with anyio.move_on_after(PATIENCE):
        for event in coming:
            await event.wait()


def _is_stale(link: Link, key: str) -> bool:
    """Whether a list should be fetched again before somebody gets it."""
    session, lifetime = link.session, link.listing.lifetimes.get(key)
    # our own servers change under our eyes
    if session is None or lifetime is None or link.config.transport == "local":
        return False
    can = session.capabilities
    capability = {"tools": can.tools, "prompts": can.prompts}.get(key, can.resources)
    announces = capability is not None and bool(capability.list_changed)
    # one that is busy may answer late, and looks broken then
    return lifetime.has_expired(announces=announces) and not link.requests.is_busy()


def is_for_all(request: ClientRequest) -> bool:
    """Whether others may get what this client gets: no token, profile or person matters."""
    principal, audience = request.principal, request.client.audience
    is_nobody = not principal.key and not principal.subject
    return is_nobody and audience._replace(person=None) == EVERYBODY


def _head(request: ClientRequest, view: View, key: str) -> bytes:
    """How long a client of the stateless era may keep a list, and for whom."""
    ttls: list[int] = []
    is_public = is_for_all(request)
    for link in _links(view):
        # empty lists do not shorten the life of the others
        if link.offers is not None and not link.offers.by_key()[key]:
            continue
        lifetime = link.listing.lifetimes.get(key)
        is_public = is_public and lifetime is not None and lifetime.is_public
        ttls.append(0 if lifetime is None or link.session is None else lifetime.rest)
    ttl = min((*ttls, LONGEST_TTL)) if ttls else 0
    scope = b"public" if is_public and ttls else b"private"
    return b'{"resultType":"complete","ttlMs":%d,"cacheScope":"%b",' % (ttl, scope)


async def _groups_of(link: Link) -> list[dict[str, Any]]:
    """The groups that a server has itself, by their names here; none if it does not answer."""
    if link.offers is None:
        return []
    declared = link.offers.capabilities
    tables = (declared.get("extensions"), declared.get("experimental"))
    if not any(is_table(table) and GROUPING in table for table in tables):
        return []
    question = make_request("groups/list", {}, _GROUP_PATIENCE, call=NOBODY, repeatable=True)
    try:
        result = link.report.redact.raw(await link.request(question))
        groups = msgspec.json.decode(result, type=dict[str, Any]).get("groups")
    except (MultitapError, *UNPARSABLE):
        return []
    return [
        {
            **group,
            "name": group_name(link.name, group["name"]),
            "_meta": in_groups(link.name, group.get("_meta")),
        }
        for group in (groups if is_list(groups) else ())
        if is_table(group) and "name" in group
    ]


def _links(view: View) -> Iterator[Link]:
    for name, link in view.catalog.links.items():
        if view.has(name) and link.state is not LinkState.DISABLED:
            yield link
