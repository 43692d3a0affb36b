"""A person's sign-in, exchanged for a token that a server accepts."""

import hashlib
import time
from contextlib import asynccontextmanager
from urllib.parse import parse_qs

import anyio
import msgspec
import pytest
from yarl import URL

from multitap.config import HttpServer, OAuth
from multitap.config.access import OidcIssuer
from multitap.config.models import TokenExchange
from multitap.errors import RequestFailed
from multitap.identity.exchange import ExchangedAccount, Exchanges, SubjectTokens
from multitap.identity.issuer import Issuer
from multitap.identity.people import Revocation
from multitap.identity.sign_in import ProviderTokens
from multitap.wire.http_origin import Challenge
from tests.identity.tiny_issuer import TinyIssuer
from tests.wire import http_zoo as zoo

pytestmark = pytest.mark.anyio

SERVER = URL("https://files.example/mcp")
TYPE = "urn:ietf:params:oauth:token-type:"


class Exchanging(TinyIssuer):
    """A provider that exchanges tokens, or an issuer that takes its assertions."""

    def __init__(self):
        super().__init__()
        self.forms = []
        self.refusal = None
        self.expires_in = 300

    async def answer(self, request, caller):
        if request.path != "/token":
            await super().answer(request, caller)
            return
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        self.forms.append(form)
        if self.refusal is not None:
            await caller.respond({"error": self.refusal}, status=400)
            return
        is_jag = form.get("requested_token_type") == f"{TYPE}id-jag"
        await caller.respond(
            {
                "access_token": f"exchanged-{len(self.forms)}",
                "issued_token_type": f"{TYPE}{'id-jag' if is_jag else 'access_token'}",
                "token_type": "N_A" if is_jag else "Bearer",
                "expires_in": self.expires_in,
            }
        )


@asynccontextmanager
async def exchanging():
    issuer = Exchanging()
    async with zoo.serve(issuer.answer) as server:
        issuer.origin = server.url.removesuffix("/mcp")
        yield issuer


class Bench:
    """An account at a server, with a clock that tests move."""

    def __init__(self, issuer, **exchange):
        self.now = time.time()
        self.alice, self.bob = (issuer.origin, "alice"), (issuer.origin, "bob")
        self.subjects = SubjectTokens(lambda: self.now)
        self.subjects.note(self.alice, "access_token", "of-alice", self.now + 600)
        self.subjects.note(self.alice, "id_token", "id-of-alice", self.now + 600)
        provider = OidcIssuer(issuer=issuer.origin, client_id="tap", client_secret="secret")
        self.issuer = Issuer("corp", provider)
        self.exchange = exchange

    def account(self, person=None, oauth=None):
        config = HttpServer(
            url=str(SERVER),
            oauth=oauth,
            credentials="exchange",
            exchange=TokenExchange(provider="corp", **self.exchange),
        )
        return ExchangedAccount(
            "files",
            config,
            person=person or self.alice,
            subjects=self.subjects,
            issuer={"corp": self.issuer}.get,
            clock=lambda: self.now,
        )


async def headers(account):
    return (await account.headers("POST", SERVER))["Authorization"]


async def test_a_token_is_exchanged_as_rfc_8693_says():
    async with exchanging() as issuer:
        bench = Bench(issuer, audience="files", scope="read write")
        got = await headers(bench.account())

    assert got == "Bearer exchanged-1"
    assert issuer.forms == [
        {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": "of-alice",
            "subject_token_type": f"{TYPE}access_token",
            "requested_token_type": f"{TYPE}access_token",
            "audience": "files",
            "scope": "read write",
        }
    ]


async def test_a_made_up_audience_is_never_sent():
    async with exchanging() as issuer:
        await headers(Bench(issuer).account())

    assert {"audience", "resource", "scope"}.isdisjoint(issuer.forms[0])


async def test_entra_gets_what_its_own_flow_wants():
    async with exchanging() as issuer:
        bench = Bench(issuer, kind="on-behalf-of", scope="api://files/.default")
        await headers(bench.account())

    form = issuer.forms[0]
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert (form["assertion"], form["requested_token_use"]) == ("of-alice", "on_behalf_of")
    assert form["scope"] == "api://files/.default"
    assert "subject_token" not in form


async def test_an_assertion_goes_both_legs():
    async with exchanging() as issuer, exchanging() as theirs:
        bench = Bench(issuer, kind="id-jag", audience=theirs.origin, subject="id_token")
        oauth = OAuth(client_id="tap-there", client_secret="another")
        got = await headers(bench.account(oauth=oauth))

    first, second = issuer.forms[0], theirs.forms[0]
    assert got == "Bearer exchanged-1"
    assert first["subject_token"] == "id-of-alice"
    assert first["subject_token_type"] == f"{TYPE}id_token"
    assert (first["audience"], "resource" in first) == (theirs.origin, False)
    assert second == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": "exchanged-1",
    }


async def test_calls_at_the_same_time_share_one_exchange():
    async with exchanging() as issuer:
        account = Bench(issuer).account()
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(headers, account)

    assert len(issuer.forms) == 1


async def test_a_token_is_used_until_a_minute_before_its_end():
    async with exchanging() as issuer:
        bench = Bench(issuer)
        account = bench.account()
        await headers(account)
        bench.now += 230
        early = account.ready
        bench.now += 20
        late = account.ready
        await headers(account)

    assert early is not None
    assert late is None
    assert len(issuer.forms) == 2


async def test_a_short_token_is_used_for_ten_seconds():
    async with exchanging() as issuer:
        issuer.expires_in = 5
        bench = Bench(issuer)
        account = bench.account()
        await headers(account)
        bench.now += 9

        assert account.ready is not None
        bench.now += 2
        assert account.ready is None


async def test_another_sign_in_of_the_person_is_exchanged_again():
    async with exchanging() as issuer:
        bench = Bench(issuer)
        account = bench.account()
        await headers(account)
        bench.subjects.note(bench.alice, "access_token", "newer", bench.now + 900)
        await headers(account)

    assert [form["subject_token"] for form in issuer.forms] == ["of-alice", "newer"]


async def test_nobody_gets_a_token_of_another_person():
    async with exchanging() as issuer:
        bench = Bench(issuer)
        await headers(bench.account())
        with pytest.raises(RequestFailed, match="connect again"):
            await headers(bench.account(bench.bob))

    assert len(issuer.forms) == 1


async def test_an_expired_or_forgotten_sign_in_is_not_exchanged():
    async with exchanging() as issuer:
        bench = Bench(issuer)
        bench.now += 700
        with pytest.raises(RequestFailed, match="connect again"):
            await headers(bench.account())
        bench.subjects.note(bench.alice, "access_token", "newer", bench.now + 900)
        bench.subjects.forget(lambda person, _: person == bench.alice)
        with pytest.raises(RequestFailed, match="connect again"):
            await headers(bench.account())

    assert issuer.forms == []


async def test_a_refusal_is_a_sentence():
    async with exchanging() as issuer:
        issuer.refusal = "invalid_target"
        with pytest.raises(RequestFailed, match="corp gives no token for files: invalid_target"):
            await headers(Bench(issuer).account())


async def test_a_token_that_the_server_refuses_is_exchanged_once_more():
    async with exchanging() as issuer:
        account = Bench(issuer).account()
        first = await headers(account)
        challenge = Challenge(401, "Bearer", authorization=first)
        again = await account.answer(challenge, "POST", SERVER, waits=False)

    assert again == {"Authorization": "Bearer exchanged-2"}


async def test_a_token_of_one_provider_is_not_shown_to_another():
    async with exchanging() as issuer:
        bench = Bench(issuer)
        stranger = ("https://other.example", "alice")
        bench.subjects.note(stranger, "access_token", "of-another", bench.now + 600)
        with pytest.raises(RequestFailed, match="at another provider"):
            await headers(bench.account(stranger))

    assert issuer.forms == []


async def test_a_token_that_its_provider_withdrew_is_not_tried_again():
    async with exchanging() as issuer:
        bench = Bench(issuer)
        issuer.refusal = "invalid_grant"
        with pytest.raises(RequestFailed):
            await headers(bench.account())
        issuer.refusal = None
        bench.subjects.note(bench.alice, "access_token", "shorter", bench.now + 60)
        await headers(bench.account())

    assert [form["subject_token"] for form in issuer.forms] == ["of-alice", "shorter"]


class Everybody:
    """The exchanges of a gateway, with Alice and Bob signed in."""

    def __init__(self, issuer):
        provider = OidcIssuer(issuer=issuer.origin, client_id="tap", client_secret="secret")
        self.issuer = Issuer("corp", provider)
        self.exchanges = Exchanges(lambda _name: self.issuer)
        self.alice, self.bob = (issuer.origin, "alice"), (issuer.origin, "bob")
        self.tokens = ProviderTokens(access_token="of-alice", expires_at=time.time() + 600)
        self.exchanges.note_sign_in(self.alice, self.tokens, time.time() + 600)
        bobs = ProviderTokens(access_token="of-bob", expires_at=time.time() + 600)
        self.exchanges.note_sign_in(self.bob, bobs, time.time() + 600)

    def account(self, person, **exchange):
        config = HttpServer(
            url=str(SERVER),
            credentials="exchange",
            exchange=TokenExchange(provider="corp", **exchange),
        )
        return self.exchanges.account(person, "files", config)


async def test_a_changed_configuration_never_serves_what_was_exchanged_before():
    async with exchanging() as issuer:
        everybody = Everybody(issuer)
        first = everybody.account(everybody.alice)
        await headers(first)
        same = everybody.account(everybody.alice)
        narrower = everybody.account(everybody.alice, scope="read")
        changed = msgspec.structs.replace(everybody.issuer.provider, client_id="other")
        everybody.issuer = Issuer("corp", changed)
        elsewhere = everybody.account(everybody.alice)

    assert same is first
    assert (narrower.ready, elsewhere.ready) == (None, None)


@pytest.mark.parametrize("kind", ["revoked", "logout", "session", "token", "ended"])
async def test_nothing_is_kept_of_a_person_who_is_out(kind):
    async with exchanging() as issuer:
        everybody = Everybody(issuer)
        alice, bob = everybody.account(everybody.alice), everybody.account(everybody.bob)
        await headers(alice)
        await headers(bob)
        match kind:
            case "ended":
                everybody.exchanges.end(everybody.alice, everybody.tokens)
            case "token":
                digest = hashlib.sha256(b"of-alice").hexdigest()
                everybody.exchanges.apply([Revocation(kind="token", at=1.0, digest=digest)])
            case "session":
                entry = Revocation(kind="logout", at=1.0, issuer=issuer.origin, session="s")
                everybody.exchanges.apply([entry])
            case _:
                entry = Revocation(kind=kind, at=1.0, issuer=issuer.origin, subject="alice")
                everybody.exchanges.apply([entry])

    assert alice.ready is None
    assert (bob.ready is None) is (kind == "session")
    assert alice._exchanged == {}
    with pytest.raises(RequestFailed, match="connect again"):
        await headers(alice)


async def test_what_was_exchanged_is_forgotten_also_without_what_it_was_exchanged_for():
    async with exchanging() as issuer:
        everybody = Everybody(issuer)
        alice = everybody.account(everybody.alice)
        await headers(alice)
        everybody.exchanges.subjects.forget(lambda *_: True)
        everybody.exchanges.forget(everybody.alice)

    assert alice._exchanged == {}
