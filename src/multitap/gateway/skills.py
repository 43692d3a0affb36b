"""Skills of all servers as those of one: listed, described, and their folders read."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.addresses import rename, split
from multitap.catalog.audience import Audience
from multitap.config.documents import Malformed, is_list, is_table
from multitap.errors import MultitapError, quoted
from multitap.gateway import client_errors
from multitap.gateway.client import ClientRequest
from multitap.gateway.lists import Cursor, Cursors, is_for_all
from multitap.gateway.view import View
from multitap.tasks import now
from multitap.trust.questions import SERVER_KEY
from multitap.upstream.link import Link
from multitap.upstream.questions import NOBODY
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import UNPARSABLE, Result, RpcError, parse_table, text_of
from multitap.wire.request import make_request

if TYPE_CHECKING:
    from multitap.gateway.calls import ClientLookup

SKILLS = "io.modelcontextprotocol/skills"
"""The extension (SEP-2640)."""
SCHEME = "skill://"
MANUAL = "/SKILL.md"
PATIENCE = 10.0
"""Seconds that one server has to list or describe its skills."""
_MOST = 1000  # skills of one server: each page of a list is another request to it
_LONGEST_TTL = 3_600_000  # milliseconds for which a server's list is kept at most
_HEADER = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)

Entry = dict[str, Any]


class _Listed(msgspec.Struct, frozen=True):
    """The skills of one server, by its own addresses."""

    skills: tuple[Entry, ...]
    ttl: int = 0
    """Milliseconds."""
    is_public: bool = False


class SkillRequests:
    """Answers the three methods of the extension.

    A skill is named by its server and its address there: the address that clients use contains
    both, so equal ones of two servers differ. Everything else of an entry stays as it is: digests
    are of contents, and names may occur twice. Servers without the extension that have manuals
    among their resources take part, too; the files of theirs are not listed in advance.
    """

    def __init__(
        self,
        view: Callable[[Audience], View],
        lookup: "ClientLookup",
        wait_complete: Callable[[Audience], Awaitable[None]],
        cursors: Cursors,
    ) -> None:
        self._cursors = cursors
        self._view = view
        self._lookup = lookup
        self._wait_complete = wait_complete
        self._cached: dict[str, tuple[Link, object, float, _Listed]] = {}
        """By server: its link, its offers at that time, until when, and the list."""

    def capability(self, audience: Audience) -> dict[str, Any] | None:
        """The settings of the extension; None if there are no skills."""
        view = self._view(audience)
        has_any = any(_settings(link) is not None for link in _links(view)) or _manuals(view)
        return {"directoryRead": True} if has_any else None

    async def list(self, request: ClientRequest, params: Raw) -> Result:
        """The skills of all servers; those of a server that does not answer are missing."""
        after = self._cursors.read(params, "skills/list", request.principal).after
        audience = request.client.audience
        await self._wait_complete(audience)
        view = self._view(audience)
        manuals = _manuals(view)
        lists: dict[str, _Listed] = {}

        async def fetch(link: Link) -> None:
            try:
                lists[link.name] = await self._fetch(link, manuals.get(link.name, ()))
            except (MultitapError, *UNPARSABLE):
                return  # one server must not hide the skills of the others

        async with anyio.create_task_group() as tasks:
            for link in _links(view):
                if _settings(link) is not None or link.name in manuals:
                    tasks.start_soon(fetch, link)
        skills = [
            _expose(server, entry)
            for server, listed in sorted(lists.items())
            for entry in listed.skills
        ]
        is_public = bool(lists) and all(listed.is_public for listed in lists.values())
        ttl = min((listed.ttl for listed in lists.values()), default=0)
        end = after + view.page_size
        content: dict[str, Any] = {"skills": skills[after:end]}
        if end < len(skills):
            following = Cursor(end)
            content["nextCursor"] = self._cursors.seal(following, "skills/list", request.principal)
        return _result(request, content, ttl, is_public=is_public)

    async def get(self, request: ClientRequest, params: Raw) -> Result:
        """One skill, listed or not."""
        link, uri = await self._find(request, params)
        if _settings(link) is not None:
            answer = await _ask(link, "skills/get", {"uri": uri})
            skill = answer.get("skill")
        else:
            answer, skill = {}, None
            if uri in _manuals(self._view(request.client.audience)).get(link.name, ()):
                skill = await _read_manual(link, uri)
        if not is_table(skill):
            raise _unknown(uri)
        is_public = answer.get("cacheScope") == "public"
        entry = _expose(link.name, dict(skill))
        return _result(request, {"skill": entry}, _ttl(answer), is_public=is_public)

    async def read_directory(self, request: ClientRequest, params: Raw) -> Result:
        """The entries of a folder of a skill."""
        link, uri = await self._find(request, params)
        settings = _settings(link)
        if settings is not None and settings.get("directoryRead"):
            question: dict[str, Any] = {"uri": uri}
            if (cursor := text_of(_table(params).get("cursor"))) is not None:
                question["cursor"] = cursor
            answer = await _ask(link, "resources/directory/read", question)
            children = [dict(item) for item in answer.get("resources", ()) if is_table(item)]
        else:
            answer = {}
            view = self._view(request.client.audience)
            listed = (entry for entry in view.resources.values() if entry.server == link.name)
            children = _children(uri, {entry.uri: entry.definition for entry in listed})
        if not children and not answer:
            raise _unknown(uri)
        content: dict[str, Any] = {
            "resources": [
                {**item, "uri": _address(link.name, item.get("uri"))} for item in children
            ]
        }
        if isinstance(following := answer.get("nextCursor"), str):
            content["nextCursor"] = following
        return _result(request, content, _ttl(answer), is_public=False)

    async def _find(self, request: ClientRequest, params: Raw) -> tuple[Link, str]:
        """The server of an address, and the address there; waits for one that still starts."""
        address = text_of(_table(params).get("uri")) or ""

        def find() -> tuple[Link, str] | None:
            view = self._view(request.client.audience)
            place = split(address) or view.catalog.directory.find(address)
            if place is None or not view.has(place[0]):
                return None
            link = view.catalog.links.get(place[0])
            # whether it has the extension is known once it is up
            return None if link is None or link.offers is None else (link, place[1])

        if (found := await self._lookup.wait_for(request, find)) is None:
            raise _unknown(address)
        link, uri = found
        self._view(request.client.audience).catalog.check_readable(link.name, uri)
        return link, uri

    async def _fetch(self, link: Link, manuals: tuple[str, ...]) -> _Listed:
        cached = self._cached.get(link.name)
        if (
            cached is not None
            and cached[0] is link
            and cached[1] is link.offers
            and now() < cached[2]
        ):
            # what is given again does not become fresher
            left = int(1000 * (cached[2] - now()))
            return msgspec.structs.replace(cached[3], ttl=left)
        if _settings(link) is not None:
            listed = await _list_all(link)
        else:
            read = [await _read_manual(link, uri) for uri in manuals[:_MOST]]
            listed = _Listed(tuple(entry for entry in read if entry is not None))
        until = now() + min(listed.ttl, _LONGEST_TTL) / 1000
        self._cached[link.name] = (link, link.offers, until, listed)
        return listed


def with_address(result: Result, uri: str, address: str) -> Result:
    """The contents of a skill's file under the address that its client uses."""
    data = b"".join(result) if isinstance(result, tuple) else bytes(result)
    table = msgspec.json.decode(data, type=dict[str, Any])
    contents = table.get("contents")
    if not is_list(contents):
        return result
    table["contents"] = [
        {**content, "uri": address} if is_table(content) and content.get("uri") == uri else content
        for content in contents
    ]
    return jsonrpc.encode(table)


async def _list_all(link: Link) -> _Listed:
    skills: list[Entry] = []
    params: dict[str, Any] = {}
    ttls: list[int] = []
    is_public = True
    seen: set[str] = set()
    while len(skills) < _MOST:
        answer = await _ask(link, "skills/list", params)
        items = answer.get("skills")
        skills += [dict(item) for item in items if is_table(item)] if is_list(items) else []
        ttls.append(_ttl(answer))
        is_public &= answer.get("cacheScope") == "public"
        cursor = answer.get("nextCursor")
        if not isinstance(cursor, str) or cursor in seen:  # a server may lead in a circle
            break
        seen.add(cursor)
        params = {"cursor": cursor}
    return _Listed(tuple(skills[:_MOST]), min(ttls), is_public)


async def _ask(link: Link, method: str, params: dict[str, Any]) -> dict[str, Any]:
    request = make_request(method, params, PATIENCE, call=NOBODY, repeatable=True)
    result = await link.request(request)
    return msgspec.json.decode(link.report.redact.raw(result), type=dict[str, Any])


async def _read_manual(link: Link, uri: str) -> Entry | None:
    """The entry of a skill whose server does not know the extension; None if it is not valid."""
    from multitap.config import yaml  # noqa: PLC0415 - it takes its time, and few have one

    contents = (await _ask(link, "resources/read", {"uri": uri})).get("contents")
    text = next(
        (
            content["text"]
            for content in (contents if is_list(contents) else ())
            if is_table(content) and isinstance(content.get("text"), str)
        ),
        "",
    )
    if (header := _HEADER.match(text)) is None:
        return None
    try:
        frontmatter = yaml.parse(header[1]).data
        encoded = msgspec.json.decode(msgspec.json.encode(frontmatter, enc_hook=str))
    except (Malformed, ValueError, RecursionError):
        return None
    # the name of the folder is that of the skill, by which hosts tell them apart
    if not is_table(encoded) or encoded.get("name") != uri.removesuffix(MANUAL).rpartition("/")[2]:
        return None
    # its files may change without a word, so there are no digests to rely on
    return {"uri": uri, "frontmatter": encoded, "resources": "dynamic"}


def _expose(server: str, entry: Entry) -> Entry:
    """An entry with the addresses that clients use, and the server it is from."""
    meta = entry.get("_meta")
    exposed = {
        **entry,
        "uri": _address(server, entry.get("uri")),
        "_meta": {**(meta if is_table(meta) else {}), SERVER_KEY: server},
    }
    if is_list(files := entry.get("resources")):
        exposed["resources"] = [
            {**file, "uri": _address(server, file.get("uri"))} if is_table(file) else file
            for file in files
        ]
    return exposed


def _address(server: str, uri: object) -> object:
    return rename(server, uri) if isinstance(uri, str) else uri


def _children(folder: str, resources: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The files and folders directly below a folder, by the addresses of all files."""
    start = f"{folder.rstrip('/')}/"
    children: dict[str, dict[str, Any]] = {}
    for uri, definition in resources.items():
        if not uri.startswith(start):
            continue
        name, slash, _ = uri[len(start) :].partition("/")
        if not slash:
            children[uri] = {**definition, "uri": uri}
        else:
            child = f"{start}{name}"
            children.setdefault(child, {"uri": child, "name": name, "mimeType": "inode/directory"})
    return [*children.values()]


def _links(view: View) -> list[Link]:
    return [link for name, link in view.catalog.links.items() if view.has(name) and link.live]


def _settings(link: Link) -> Mapping[str, Any] | None:
    """A server's settings of the extension; None if it does not have it."""
    extensions = None if link.offers is None else link.offers.capabilities.get("extensions")
    settings = extensions.get(SKILLS) if is_table(extensions) else None
    return settings if is_table(settings) else None


def _manuals(view: View) -> dict[str, tuple[str, ...]]:
    """The manuals among the resources of servers, by server."""
    manuals: dict[str, tuple[str, ...]] = {}
    for entry in view.resources.values():
        if entry.uri.startswith(SCHEME) and entry.uri.endswith(MANUAL):
            manuals[entry.server] = (*manuals.get(entry.server, ()), entry.uri)
    return manuals


def _table(params: Raw) -> dict[str, Raw]:
    return parse_table(params) if len(params) else {}


def _ttl(answer: Mapping[str, Any]) -> int:
    ttl = answer.get("ttlMs")
    return ttl if isinstance(ttl, int) and ttl > 0 else 0


def _result(
    request: ClientRequest, content: dict[str, Any], ttl: int, *, is_public: bool
) -> Result:
    if not request.is_stateless:
        return jsonrpc.encode(content)
    scope = "public" if is_public and is_for_all(request) else "private"
    return jsonrpc.encode({"resultType": "complete", **content, "ttlMs": ttl, "cacheScope": scope})


def _unknown(uri: str) -> RpcError:
    return RpcError(client_errors.INVALID_PARAMS, f"no skill {quoted(uri)}", {"uri": uri})
