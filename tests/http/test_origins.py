import pytest
from yarl import URL

from multitap.http.client.origins import (
    join_url,
    proxy_for,
    same_origin,
    show_url,
    stays_home,
    without_credentials,
)

HOME = URL("https://example.com/mcp")


def test_an_address_is_shown_without_what_may_be_secret():
    assert (
        show_url(URL("https://me:pw@example.com:8443/a/b?key=1#x"))
        == "https://example.com:8443/a/b"
    )


def test_user_and_password_become_a_header():
    url, headers = without_credentials(URL("http://me:p%40w@example.com/"))

    assert url == URL("http://example.com/")
    assert headers == {"Authorization": "Basic bWU6cEB3"}
    assert without_credentials(HOME) == (HOME, {})


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("/other", "https://example.com/other"),
        ("other?a=1", "https://example.com/other?a=1"),
        ("https://user:pw@example.com/x#y", "https://example.com/x"),
        ("//evil.example/x", "https://evil.example/x"),
        ("javascript:alert(1)", None),
        ("file:///etc/passwd", None),
        ("http://[bad", None),
        ("http://a:99999999/", None),
    ],
)
def test_a_reference_is_seen_from_where_it_was_given(reference: str, target: str | None):
    assert join_url(HOME, reference) == (None if target is None else URL(target))


@pytest.mark.parametrize(
    ("start", "target", "stays"),
    [
        ("https://example.com/mcp", "https://example.com/", True),
        ("https://example.com/mcp", "https://example.com:443/", True),
        ("https://EXAMPLE.com/mcp", "https://example.com/", True),
        ("http://example.com/mcp", "https://example.com/mcp", True),
        ("http://example.com:8080/mcp", "https://example.com/mcp", False),
        ("https://example.com/mcp", "http://example.com/mcp", False),
        ("https://example.com/mcp", "https://example.com:444/", False),
        ("https://example.com/mcp", "https://www.example.com/", False),
        ("http://example.com/mcp", "https://example.org/mcp", False),
    ],
)
def test_only_a_redirect_that_stays_home_keeps_our_headers(start: str, target: str, stays: bool):
    assert stays_home(URL(start), URL(target)) is stays


def test_an_origin_is_scheme_host_and_port():
    assert same_origin(HOME, URL("https://example.com:443/other"))
    assert not same_origin(HOME, URL("http://example.com:443/mcp"))


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://example.com/", "http://proxy:3128"),
        ("http://example.com/", None),
        ("https://inside.example.com/", None),
        ("https://127.0.0.1/", None),
        ("https://localhost/", None),
        ("https://[::1]/", None),
    ],
)
def test_the_environment_names_the_proxy(
    url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
):
    for name in ("HTTP_PROXY", "http_proxy", "https_proxy", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example.com")

    assert proxy_for(URL(url)) == proxy
