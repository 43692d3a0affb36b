"""The options and this machine's features decide which clients need a token."""

import pytest

from multitap.errors import ConfigError
from multitap.gateway.fronts.front_access import AccessRules, open_access
from multitap.http.loopback import is_loopback
from multitap.http.server.access import Admitted, Rejected
from multitap.trust.access_tokens import AccessTokens

OTHERS = ("0.0.0.0", "::", "192.168.0.7", "tap.example", "")


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return AccessTokens()


def decided(allowed):
    return allowed.access.decide({b"host": b"localhost"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]"])
def test_on_this_machine_the_user_needs_no_token(host):
    assert is_loopback(host)
    with open_access(AccessRules(host)) as allowed:
        assert not allowed.is_token_required
        assert not allowed.is_user_unknown
        assert isinstance(decided(allowed), Rejected)  # nobody knows who it is


@pytest.mark.parametrize("host", OTHERS)
def test_others_can_not_be_let_in_by_accident(host, store):
    with (
        pytest.raises(ConfigError, match="no token yet") as caught,
        open_access(AccessRules(host)),
    ):
        pass
    assert "--insecure" in caught.value.hint
    assert "multitap token create" in caught.value.hint

    with open_access(AccessRules(host, insecure=True)) as allowed:
        assert decided(allowed) == Admitted()
    store.create("ci")
    with open_access(AccessRules(host)) as allowed:
        assert decided(allowed).status == 401


@pytest.mark.parametrize("host", ["127.0.0.1", *OTHERS])
def test_who_requires_a_token_gets_no_client_without(host):
    rules = AccessRules(host, require_token=True, insecure=True)
    with open_access(rules) as allowed:
        assert allowed.is_token_required
        assert decided(allowed).status == 401
