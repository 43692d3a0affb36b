"""Which addresses a request may go to, and how they are shown."""

import base64
from typing import TYPE_CHECKING

from yarl import URL

from multitap.http.loopback import is_loopback
from multitap.later import Later

if TYPE_CHECKING:
    from urllib import request as urllib_request
else:
    urllib_request = Later("urllib.request")  # it brings all that mail needs, too


def show_url(url: URL) -> str:
    """`url` without what may be secret: user, password, query."""
    return str(url.with_user(None).with_query(None).with_fragment(None))


def without_credentials(url: URL) -> tuple[URL, dict[str, str]]:
    """`url` without user and password, and the header that says them instead."""
    if url.user is None and url.password is None:
        return url, {}
    pair = f"{url.user or ''}:{url.password or ''}".encode()
    return url.with_user(None), {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def same_origin(url: URL, other: URL) -> bool:
    return (url.scheme, url.host, url.port) == (other.scheme, other.host, other.port)


def join_url(url: URL, reference: str) -> URL | None:
    """Where `reference` points, seen from `url`; None when it is not a web address."""
    try:
        target = url.join(URL(reference)).with_fragment(None)
    except ValueError:
        return None
    # credentials in a redirect or an endpoint are the server's idea, not the user's
    return target.with_user(None) if target.scheme in ("http", "https") and target.host else None


def stays_home(url: URL, target: URL) -> bool:
    """Whether a redirect from `url` to `target` may take our headers along."""
    # the same host, from now on encrypted: nobody new gets to see our headers
    upgrade = (url.scheme, url.port) == ("http", 80) and (target.scheme, target.port) == (
        "https",
        443,
    )
    return same_origin(url, target) or (upgrade and url.host == target.host)


def proxy_for(url: URL) -> str | None:
    """The web proxy that the environment names for `url`."""
    host = url.host or ""
    # a proxy elsewhere cannot reach what listens here
    if is_loopback(host) or urllib_request.proxy_bypass(host):
        return None
    proxy = urllib_request.getproxies().get(url.scheme)
    return proxy if proxy and proxy.startswith(("http://", "https://")) else None
