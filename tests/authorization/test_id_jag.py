"""Assertions of the organisation's provider, in place of a sign-in in a browser."""

import time

import pytest
from joserfc.jwk import RSAKey

from multitap.config.access import RegisteredClient
from tests.authorization.organisation import REDIRECT, sign_ins

pytestmark = pytest.mark.anyio

KNOWN, SECRET = "agent-platform", "a secret of theirs"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@pytest.fixture
async def front(tmp_path):
    clients = {
        KNOWN: RegisteredClient(client_secret=SECRET),
        "public": RegisteredClient(redirect_uris=(REDIRECT,)),
    }
    async with sign_ins(tmp_path, clients=clients) as opened:
        yield opened


def assertion(front, *, header=None, key=None, seconds=None, **changes):
    """`seconds` has times, counted from now."""
    now = int(time.time())
    claims = {
        "aud": front.url,
        "client_id": KNOWN,
        "resource": f"{front.url}/mcp",
        "scope": "tools other",
        "iat": now,
        "exp": now + 300,
        **changes,
        **{name: now + offset for name, offset in (seconds or {}).items()},
    }
    return front.organisation.token(
        header={"typ": "oauth-id-jag+jwt", **(header or {})}, key=key, **claims
    )


def ask(front, token, **changes):
    form = {"grant_type": GRANT, "assertion": token, "client_id": KNOWN, "client_secret": SECRET}
    return front.post("/token", {**form, **changes})


async def test_an_assertion_is_exchanged_for_a_token_without_a_refresh_token(front):
    status, answer = await ask(front, assertion(front))

    assert status == 200
    assert "refresh_token" not in answer
    assert answer["scope"] == "tools"
    verified = await front.server.verify(answer["access_token"], [f"{front.url}/mcp"])
    assert (verified.subject, verified.client) == ("alice", KNOWN)
    assert verified.issuer == front.organisation.origin


async def test_an_assertion_counts_once(front):
    token = assertion(front)
    first, second = await ask(front, token), await ask(front, token)

    assert first[0] == 200
    assert (second[0], second[1]["error"]) == (400, "invalid_grant")


@pytest.mark.parametrize(
    "changes",
    [
        {"header": {"typ": "JWT"}},
        {"header": {"typ": "at+jwt"}},
        {"aud": "https://other.example"},
        {"aud": ["https://other.example", "https://more.example"]},
        {"client_id": "somebody-else"},
        {"iss": "https://other.example"},
        {"sub": None},
        {"jti": None},
        {"seconds": {"exp": -1}},
        {"seconds": {"exp": 4000}},
        {"seconds": {"iat": 400}},
        {"seconds": {"iat": -400}},
        {"resource": ["a", "b"]},
        {"scope": ["tools"]},
        {"cnf": {"jkt": "x"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_wrong_assertion_is_refused(front, changes):
    status, answer = await ask(front, assertion(front, **changes))

    assert (status, answer["error"]) == (400, "invalid_grant")


async def test_an_assertion_of_another_key_is_refused(front):
    key = RSAKey.generate_key(2048, {"kid": "first"})

    status, answer = await ask(front, assertion(front, key=key))

    assert (status, answer["error"]) == (400, "invalid_grant")


@pytest.mark.parametrize("scope", ["", "other"])
async def test_an_assertion_gives_no_scope_that_is_not_in_it(front, scope):
    _, answer = await ask(front, assertion(front, scope=scope, scp="tools"))

    verified = await front.server.verify(answer["access_token"], [f"{front.url}/mcp"])
    assert verified.scopes == frozenset()


async def test_an_assertion_for_one_profile_opens_no_other(front):
    token = assertion(front, resource=f"{front.url}/mcp/readers")
    status, answer = await ask(front, token, resource=f"{front.url}/mcp/admins")
    _, right = await ask(front, token, resource=f"{front.url}/mcp/readers")

    assert (status, answer["error"]) == (400, "invalid_target")
    assert right["access_token"]


async def test_an_assertion_for_a_resource_of_others_is_refused(front):
    token = assertion(front, resource="https://other.example/mcp")

    status, answer = await ask(front, token)

    assert (status, answer["error"]) == (400, "invalid_target")


async def test_a_client_without_a_secret_cannot_use_assertions(front):
    token = assertion(front, client_id="public")
    form = {"grant_type": GRANT, "assertion": token, "client_id": "public"}
    public = await front.post("/token", form)
    registered = await front.post("/token", {**form, "client_id": await front.register()})
    wrong = await ask(front, token, client_secret="guessed")

    assert public[1]["error"] in {"unauthorized_client", "unsupported_grant_type"}
    assert registered[1]["error"] in {"unauthorized_client", "unsupported_grant_type"}
    assert (wrong[0], wrong[1]["error"]) == (401, "invalid_client")
