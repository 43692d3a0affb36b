"""Downloads a bundle from its publisher, within limits."""

from pathlib import Path

import anyio
from yarl import URL

from multitap.errors import Unavailable
from multitap.faults import WireFault
from multitap.http.client.http_client import http_client
from multitap.published.bundle_file import MAX_FILE

TIMEOUT = 120.0  # seconds for all of it, redirects included
# Release pages need one or two; more is a loop.
MOST_REDIRECTS = 5
_FOUND = 200
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
            if response.status != _FOUND:
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
