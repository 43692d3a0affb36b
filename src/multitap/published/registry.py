"""A client for MCP registries; every answer is checked."""

import re
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import anyio
import msgspec
from yarl import URL

from multitap.errors import ConfigError, MultitapError, Unavailable, WireFault
from multitap.http.client.client import HttpClient, http_client
from multitap.published.bundles import MAX_FILE
from multitap.published.server_json import PublishedServer, read_server, table_of

DEFAULT = "https://registry.modelcontextprotocol.io"
"""The official registry."""
VARIABLE = "MULTITAP_REGISTRY"
REGISTRY_TIMEOUT = 15.0
"""Seconds for one search or look-up, all pages included."""
MAX_BYTES = 4 * 1024 * 1024
"""Bytes of one answer, after decompression."""
# 250 servers: nobody reads more, and a cursor that never ends must not keep us asking.
MOST_PAGES = 5
PAGE = 50
LONGEST_CURSOR = 1024

_OFFICIAL = "io.modelcontextprotocol.registry/official"
_NAME = re.compile(r"[A-Za-z0-9.-]{1,150}/[A-Za-z0-9._-]{1,150}")
_HEADERS = {"Accept": "application/json"}
_OK = 200
_MISSING = 404


class RegistryClient:
    """One registry.

    Args:
        base: Its address, without `/v0.1`.
    """

    def __init__(self, base: str = DEFAULT) -> None:
        self._base = base.rstrip("/")

    async def search(self, query_text: str) -> list[PublishedServer]:
        """The latest versions of servers with these words in their name or description.

        Raises:
            Unavailable: It cannot be reached, or its answer cannot be used.
        """
        servers: list[PublishedServer] = []
        query = {"search": query_text, "version": "latest", "limit": str(PAGE)}
        with _limit_time(self._base):
            async with http_client(URL(self._base)) as client:
                for _ in range(MOST_PAGES):
                    page = await self._ask(client, f"servers?{urlencode(query)}")
                    servers += filter(None, map(_server, _list(page.get("servers"))))
                    cursor = table_of(page.get("metadata")).get("nextCursor")
                    if not isinstance(cursor, str) or not 0 < len(cursor) <= LONGEST_CURSOR:
                        break
                    query["cursor"] = cursor
        return servers

    async def server(self, name: str) -> PublishedServer | None:
        """The latest version of a server, by its whole name; None if there is none.

        Raises:
            Unavailable: It cannot be reached, or its answer cannot be used.
        """
        with _limit_time(self._base):
            async with http_client(URL(self._base)) as client:
                path = f"servers/{quote(name, safe='')}/versions/latest"
                page = await self._ask(client, path, may_miss=True)
                return _server(page) if page else None

    async def _ask(
        self, client: HttpClient, path: str, *, may_miss: bool = False
    ) -> Mapping[str, Any]:
        # as it is: the slash in a name must stay encoded
        url = URL(f"{self._base}/v0.1/{path}", encoded=True)
        try:
            response = await client.send(client.head("GET", url, _HEADERS), None)
            try:
                if response.status == _MISSING and may_miss:
                    return {}
                if response.status != _OK:
                    raise Unavailable(self._base, f"it answered with status {response.status}")
                data = await read_bounded(response.chunk, MAX_BYTES)
            finally:
                response.close()
        except WireFault as exc:
            raise Unavailable(self._base, str(exc), hint=_HINT) from None
        except ValueError as exc:
            raise Unavailable(self._base, str(exc)) from None
        try:
            return table_of(msgspec.json.decode(data))
        except (msgspec.DecodeError, RecursionError) as exc:
            raise Unavailable(self._base, f"its answer is not JSON: {exc}") from None


_HINT = "the bundled catalog needs no network; `registry` or MULTITAP_REGISTRY names another one"


async def read_bounded(chunk: Callable[[], Awaitable[bytes]], limit: int) -> bytes:
    """A whole body.

    Raises:
        ValueError: It is longer than that.
    """
    data = bytearray()
    while piece := await chunk():
        data += piece
        if len(data) > limit:
            raise ValueError(f"its answer has more than {limit:,} bytes")
    return bytes(data)


def is_registry_name(text: str) -> bool:
    """Whether a text is the whole name of a server in a registry."""
    return bool(_NAME.fullmatch(text))


@contextmanager
def _limit_time(base: str) -> Generator[None]:
    """Limit the time of a block to what a person would wait."""
    try:
        with anyio.fail_after(REGISTRY_TIMEOUT):
            yield
    except TimeoutError:
        reason = f"it did not answer within {REGISTRY_TIMEOUT:g} seconds"
        raise Unavailable(base, reason, hint=_HINT) from None


def _server(entry: Any) -> PublishedServer | None:
    """One server of an answer; None if it is malformed or deleted."""
    table = table_of(entry)
    meta = table_of(table_of(table.get("_meta")).get(_OFFICIAL))
    status = meta.get("status")
    status = status if status in {"active", "deprecated", "deleted"} else "active"
    if status == "deleted":
        return None
    try:
        return read_server(
            table_of(table.get("server")), status, str(meta.get("statusMessage") or "")
        )
    except (ConfigError, MultitapError):
        return None


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()  # pyright: ignore[reportUnknownVariableType]


TIMEOUT = 120.0  # seconds for all of it, redirects included
# Release pages need one or two; more is a loop.
MOST_REDIRECTS = 5
_ELSEWHERE = frozenset({301, 302, 303, 307, 308})


async def download(address: str, path: Path) -> None:
    """Download an address into a file; the content is checked elsewhere.

    Raises:
        Unavailable: It cannot be downloaded.
    """
    url = URL(address)
    try:
        with anyio.fail_after(TIMEOUT):
            for _ in range(MOST_REDIRECTS + 1):
                elsewhere = await _fetch(url, path)
                if elsewhere is None:
                    return
                # never from https to http: the download must be as safe as the release page
                if url.scheme == "https" and elsewhere.scheme != "https":
                    raise Unavailable(str(url.host), "it redirects to an unencrypted address")
                url = elsewhere
    except WireFault as exc:
        raise Unavailable(str(url.host), str(exc)) from None
    except TimeoutError:
        raise Unavailable(str(url.host), f"it took more than {TIMEOUT:g} seconds") from None
    raise Unavailable(str(url.host), f"it redirects more than {MOST_REDIRECTS} times")


async def _fetch(url: URL, path: Path) -> URL | None:
    """Fetch an address; returns the target of a redirect, if any."""
    async with http_client(url) as client:
        response = await client.send(client.head("GET", url, {"Accept": "*/*"}), None)
        try:
            if response.status in _ELSEWHERE and (place := response.header("location")):
                return url.join(URL(place))
            if response.status != _OK:
                raise Unavailable(str(url.host), f"it answered with status {response.status}")
            size = 0
            async with await anyio.open_file(path, "wb") as file:
                while piece := await response.chunk():
                    size += len(piece)
                    # counted on arrival: a length that a server states proves nothing
                    if size > MAX_FILE:
                        raise Unavailable(str(url.host), f"it has more than {MAX_FILE:,} bytes")
                    await file.write(piece)
        finally:
            response.close()
    return None
