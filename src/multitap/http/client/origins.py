"""Which addresses a request may go to, and how they are shown."""

import base64
from typing import TYPE_CHECKING

from yarl import URL

from multitap.http.loopback import is_loopback
from multitap.later import Later

if TYPE_CHECKING:
    from urllib import request as urllib_request
else:
    urllib_request = Later("urllib.request")  # lazily: it imports the whole `email` package


def show_url(url: URL) -> str:
    """`url` without user, password and query, which may be secret."""
    return str(url.with_user(None).with_query(None).with_fragment(None))


def without_credentials(url: URL) -> tuple[URL, dict[str, str]]:
    """`url` without user and password, and a header with them."""
    if url.user is None and url.password is None:
        return url, {}
    pair = f"{url.user or ''}:{url.password or ''}".encode()
    return url.with_user(None), {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def same_origin(url: URL, other: URL) -> bool:
    return (url.scheme, url.host, url.port) == (other.scheme, other.host, other.port)


def join_url(url: URL, reference: str) -> URL | None:
    """Resolve `reference` against `url`; None if it is not a web address."""
    try:
        target = url.join(URL(reference)).with_fragment(None)
    except ValueError:
        return None
    # credentials in a redirect or an endpoint come from the server, not from the user
    return target.with_user(None) if target.scheme in ("http", "https") and target.host else None


def stays_home(url: URL, target: URL) -> bool:
    """Whether our headers may be sent to the target of a redirect."""
    # the same host, now encrypted: no other party sees our headers
    upgrade = (url.scheme, url.port) == ("http", 80) and (target.scheme, target.port) == (
        "https",
        443,
    )
    return same_origin(url, target) or (upgrade and url.host == target.host)


def proxy_for(url: URL) -> str | None:
    """The web proxy that the environment names for `url`."""
    host = url.host or ""
    # a remote proxy cannot reach loopback addresses
    if is_loopback(host) or urllib_request.proxy_bypass(host):
        return None
    proxy = urllib_request.getproxies().get(url.scheme)
    return proxy if proxy and proxy.startswith(("http://", "https://")) else None
