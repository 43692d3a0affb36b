"""Probes whether and how a server requires authorization."""

from http import HTTPStatus

import anyio
from yarl import URL

from multitap.config import HttpServer
from multitap.faults import RequestFailed
from multitap.http.client.headers import DEFAULTS, merge
from multitap.http.client.http_client import http_client
from multitap.http.client.origins import without_credentials
from multitap.wire.streamable.http_origin import EVENTS, JSON

_PATIENCE = 20.0
_PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
_HEADERS = {"Accept": f"{JSON}, {EVENTS}", "Content-Type": JSON}


async def wanted_login(config: HttpServer) -> str | None:
    """The `WWW-Authenticate` header for a request without credentials; None if it is accepted.

    Raises:
        RequestFailed: It cannot be reached.
    """
    url, credentials = without_credentials(URL(config.url))
    headers = merge(DEFAULTS, credentials, config.headers, _HEADERS)
    method, body = ("GET", None) if config.transport == "sse" else ("POST", _PING)
    try:
        with anyio.fail_after(_PATIENCE):
            async with http_client(url) as client:
                response = await client.send(client.head(method, url, headers), body)
                response.close()
    except TimeoutError:
        raise RequestFailed(f"it did not answer within {_PATIENCE:g} s", sent=True) from None
    if response.status != HTTPStatus.UNAUTHORIZED:
        return None
    return response.header("WWW-Authenticate") or ""
