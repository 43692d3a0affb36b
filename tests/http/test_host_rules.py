import pytest

from multitap.http.egress.host_rules import HostRules, is_here

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
