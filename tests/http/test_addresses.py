"""The host that is shown for an address is the one that a browser opens."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multitap.http.addresses import LONGEST, HostRules, host_of, is_here, is_safe
from tests.waiting import PATIENCE

NODE = shutil.which("node")
PAGE = Path(__file__).parents[2] / "src/multitap/screens/page/static/dom.js"
PARSE = """
import { webAddress } from PAGE;
const browser = (address) => { try { return new URL(address).host; } catch { return null; } };
const addresses = JSON.parse(await new Response(process.stdin).text());
console.log(JSON.stringify(addresses.map((one) => [webAddress(one)?.host ?? null, browser(one)])));
"""

SAFE = [
    ("https://bank.example", "bank.example"),
    ("https://bank.example/sign-in?next=/a&b=%20#part", "bank.example"),
    ("https://BANK.example:443/", "bank.example"),
    ("https://bank.example:8443/", "bank.example:8443"),
    ("https://bank.example/@evil.example/", "bank.example"),
    ("https://bank.example?@evil.example/", "bank.example"),
    ("https://xn--bnk-sla.example/", "xn--bnk-sla.example"),
    ("https://192.0.2.1/", "192.0.2.1"),
    ("https://[2001:DB8:0::1]:8443/", "[2001:db8::1]:8443"),
    ("http://127.0.0.1:8414/callback", "127.0.0.1:8414"),
    ("http://localhost/", "localhost"),
    ("http://[::1]:80/", "[::1]"),
]
UNSAFE = [
    "",
    "bank.example",
    "//bank.example/",
    "http://bank.example/",
    "http://localhost.evil.example/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "data:text/html,x",
    "blob:https://bank.example/",
    "view-source:https://bank.example/",
    "vscode://bank.example/",
    "https:bank.example",
    "https:/bank.example",
    "https:///bank.example",
    "https:\\\\bank.example/",
    "https://evil.example\\@bank.example/",
    "https://evil.example\\.bank.example/",
    "https://bank.example\\",
    "https://bank.example@evil.example/",
    "https://bank.example:443@evil.example/",
    "https://:secret@evil.example/",
    "https://@evil.example/",
    "https://bank.example%2eevil.example/",
    "https://bank.example%00.evil.example/",
    "https://ev\til.example/",
    "https://ev\nil.example/",
    "https://evil.example\n",
    " https://evil.example/",
    "https://evil.example/ ",
    "\u0000https://evil.example/",
    "https://b\u0430nk.example/",
    "https://bänk.example/",
    "https://bank\u3002example/",
    "https://bank.example\u2044.evil.example/",
    "https://bank\u200b.example/",
    "https://bank.example/\u202egpj.exe",
    "https://bank.example/\u00ad",
    "https://2130706433/",
    "https://127.1/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://127.0.0.1./",
    "https://1.2.3.4.5/",
    "https://256.0.0.1/",
    "https://bank.example.0x1/",
    "http://0/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "https://[::1%25eth0]/",
    "https://[evil]/",
    "https://bank..example/",
    "https://.bank.example/",
    "https://bank.example:/",
    "https://bank.example:0/",
    "https://bank.example:65536/",
    "https://bank.example:44_3/",
    "https://bank.example:\uff1443/",
    "https://bank.example/$(calc)",
    "https://bank.example/`calc`",
    'https://bank.example/"',
    f"https://bank.example/{'x' * LONGEST}",
]
PARTS = [
    *("https", "http", "HTTPS", "file", ":", "//", "/", "\\", "\\\\", "@", "?", "#", "%2e", "%"),
    *("bank.example", "evil.example", "localhost", "127.0.0.1", "127.1", "0x7f", "0", "256", "."),
    *(
        "[::1]",
        "[2001:db8::1]",
        "[",
        "]",
        "::",
        ":443",
        ":80",
        ":8443",
        ":0",
        "xn--",
        "xn--bnk-sla",
    ),
    *(
        "\t",
        "\n",
        "\r",
        " ",
        "\x00",
        "ä",
        "\u3002",
        "\u202e",
        "\u200b",
        "\u0430",
        "-",
        "_",
        "&",
        "=",
    ),
]
ADDRESSES = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=8).map("".join),
    st.lists(st.sampled_from(PARTS), max_size=6).map(lambda parts: "https://" + "".join(parts)),
    st.text(max_size=20).map(lambda text: f"https://{text}"),
)


def parse_as_browsers_do(addresses):
    """For each address: the host that the console shows, and the one that a browser opens."""
    program = PARSE.replace("PAGE", json.dumps(PAGE.as_uri()))
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", program],
        input=json.dumps(addresses),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(("address", "host"), SAFE)
def test_the_host_that_a_browser_opens_is_shown(address, host):
    assert host_of(address) == host


@pytest.mark.parametrize("address", UNSAFE, ids=lambda address: ascii(address[:40]))
def test_what_cannot_be_shown_truthfully_is_unsafe(address):
    assert not is_safe(address)


@pytest.mark.skipif(NODE is None, reason="there is no node, which parses as browsers do")
def test_the_page_knows_the_same_addresses():
    addresses = [*(address for address, _ in SAFE), *UNSAFE]

    shown = [host for host, _ in parse_as_browsers_do(addresses)]

    assert dict(zip(addresses, shown, strict=True)) == {one: host_of(one) for one in addresses}


@pytest.mark.skipif(NODE is None, reason="there is no node, which parses as browsers do")
@settings(max_examples=10, deadline=None)
@given(st.lists(ADDRESSES, min_size=50, max_size=200))
def test_no_address_is_opened_at_another_host_than_shown(addresses):
    for address, (in_page, in_browser) in zip(
        addresses, parse_as_browsers_do(addresses), strict=True
    ):
        # a browser may refuse more, such as a name whose encoding is wrong
        assert host_of(address) in {None, in_browser} or in_browser is None, ascii(address)
        assert in_page == (host_of(address) if in_browser is not None else None), ascii(address)


RULES = HostRules(("api.example.com", "*.example.org:8443", "10.0.0.0/8", "inner.example.net"))


ODD = (
    "64:ff9b::7f00:1",
    "::7f00:1",
    "::ffff:0:7f00:1",
    "64:ff9b:1::7f00:1",
    "2001:0:7f00:1::",
    "fec0::1",
    "ff02::1",
)


@pytest.mark.parametrize(
    ("host", "port"),
    [("api.example.com", 443), ("API.example.com.", 80), ("a.example.org", 8443), ("10.1.2.3", 80)],
)
def test_a_declared_host_may_be_reached(host, port):
    assert RULES.refusal(host, port) is None


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("example.com", 443),
        ("api.example.com", 22),
        ("api.example.com.evil.net", 443),
        ("example.org", 8443),
        ("a.example.org", 443),
        ("127.0.0.1", 80),
        ("2130706433", 80),
        ("0x7f.1", 80),
        ("::ffff:127.0.0.1", 80),
        ("api.example.com\r\nHost: evil", 443),
    ],
)
def test_any_other_host_is_refused(host, port):
    assert RULES.refusal(host, port) is not None


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "169.254.169.254",
        "192.168.1.1",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        *ODD,
    ],
)
def test_a_name_that_leads_inside_is_refused(address):
    assert not RULES.permits("api.example.com", address, 443)


def test_a_name_may_lead_to_a_network_that_a_rule_names():
    assert RULES.permits("inner.example.net", "10.2.3.4", 443)
    assert RULES.permits("api.example.com", "93.184.216.34", 443)


def test_a_star_opens_every_public_host_and_nothing_inside():
    rules = HostRules(("*",))

    assert rules.refusal("api.example.com", 443) is None
    assert rules.refusal("api.example.com", 22) is not None
    assert rules.refusal("localhost", 80) is not None
    assert rules.refusal("127.0.0.1", 80) is not None
    assert rules.permits("api.example.com", "93.184.215.14", 443)
    assert not rules.permits("api.example.com", "127.0.0.1", 443)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.8.7", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0"),
        *("64:ff9b::7f00:1", "2002:7f00:1::"),
    ],
)
def test_an_address_of_this_machine_is_here(address):
    assert is_here(address)


@pytest.mark.parametrize("address", ["192.0.2.1", "8.8.8.8", "2001:db8::1", "::ffff:192.0.2.1"])
def test_an_address_of_another_machine_is_not_here(address):
    assert not is_here(address)
