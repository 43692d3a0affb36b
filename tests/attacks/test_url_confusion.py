"""Threat: a URL that our parser and the server's read differently gets around a list of hosts."""

import pytest

from multitap.config.policy_rules import HostList, is_host

GOOD = HostList(
    ("good.example", "*.wild.example", "port.example:8443", "127.0.0.1", "[::1]", "bücher.example")
)


@pytest.mark.parametrize(
    "url",
    [
        "https://good.example",
        "https://good.example/",
        "https://GOOD.example./x?y=z#w",
        "http://good.example:8080/@evil.example",
        "good.example/path",
        "wss://a.b.wild.example/",
        "https://port.example:8443/x",
        "http://127.0.0.1:3000/",
        "http://[0:0::1]:3000/",
        "https://bücher.example/",
        "https://BÜCHER.example/",
        "https://xn--bcher-kva.example/",
        "https://good\uff0eexample/",
    ],
)
def test_hosts_in_the_list_are_found(url):
    assert GOOD.has(url) is True


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/",
        "https://good.example.evil.example/",
        "https://notgood.example/",
        "https://wild.example/",
        "https://port.example/",
        "https://port.example:443/",
        "https://evil.example/good.example",
        "https://evil.example?good.example",
        "https://evil.example#good.example",
        "http://127.0.0.2/",
        "http://[::2]/",
        "https://bucher.example/",
    ],
)
def test_other_hosts_are_not(url):
    assert GOOD.has(url) is False


@pytest.mark.parametrize(
    "url",
    [
        "https://good.example@evil.example/",
        "https://good.example:80@evil.example/",
        "https://user:pass@good.example/",
        "https://good.example#@evil.example/",
        "https://good.example?@evil.example/",
        "https://good.example\\@evil.example/",
        "https://evil.example\\.good.example/",
        "https:\\\\evil.example/",
        "https:evil.example/",
        "https:/evil.example/",
        "https:///evil.example/",
        "//evil.example/",
        "/evil",
        " https://evil.example/",
        "https://ev\til.example/",
        "https://good.example\n.evil.example/",
        "https://good.example%2eevil.example/",
        "https://%65vil.example/",
        "https://good.example:99999999/",
        "https://good.example:x/",
        "https://faß.example/",
        "https://g\u200dood.example/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.0.1.1/",
        "http://[::1%25lo]/",
        "http://[::1/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "mailto:a@good.example",
        "",
        7,
        None,
        "https://good.example/" + "x" * 10_000,
    ],
)
def test_urls_that_parsers_read_differently_are_in_no_list(url):
    assert GOOD.has(url) is None


def test_networks_are_matched_by_address_in_any_form():
    private = HostList(("10.0.0.0/8", "169.254.169.254", "fd00::/8"))

    assert private.has("http://10.1.2.3/") is True
    assert private.has("http://[::ffff:10.1.2.3]/") is True
    assert private.has("http://[::ffff:a01:203]/") is True
    assert private.has("http://[fd00::1]/") is True
    assert private.has("http://169.254.169.254/latest") is True
    assert private.has("http://11.1.2.3/") is False


@pytest.mark.parametrize("written", ["", "a b", "http://x/y", "10.0.0.0/99", "*.", "a@b", "127.1"])
def test_hosts_that_cannot_be_understood_are_refused(written):
    assert not is_host(written)
