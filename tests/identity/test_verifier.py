"""Which tokens of an identity provider are accepted, and how often it is asked."""

import base64
import hashlib
import hmac
import json
import re
import time
from contextlib import asynccontextmanager

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from multitap.config.access import AccessRule, AccessSettings, OidcIssuer
from multitap.identity.access_tokens import MissingScopes, ProviderDown, TokenRefused
from multitap.identity.people import People, Revocation
from multitap.identity.verifier import REMEMBERED, NotAdmitted, Verifier
from tests.identity.tiny_issuer import TinyIssuer, sign, tiny_issuer

RESOURCE = b"/mcp"
AUDIENCES = frozenset({"https://tap.example.com/mcp"})
EVERYBODY = AccessRule(name="everybody")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.passed = 0.0

    def wall(self):
        return time.time() + self.passed

    def age(self):
        return time.monotonic() + self.passed


@asynccontextmanager
async def verifying(tmp_path, *rules, clock=None, issuer=None, **settings):
    clock = clock or Clock()
    async with tiny_issuer(**(issuer or {})) as provider:
        access = AccessSettings(
            oidc={"corp": OidcIssuer(issuer=provider.url, **settings)}, rules=rules or (EVERYBODY,)
        )
        yield provider, Verifier(access, People(tmp_path), clock=clock.wall, ages=clock.age)


async def decide(verifier, token):
    return await verifier.decide(token.encode(), RESOURCE, AUDIENCES)


async def test_a_valid_token_says_who_it_is_and_what_it_may(tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        decision = await decide(verifier, issuer.token())

        principal = decision.principal
        assert (principal.issuer, principal.subject, principal.client) == (
            issuer.url,
            "alice",
            "claude",
        )
        assert principal.person == (issuer.url, "alice")
        assert decision.token.groups == {"dev"}
        assert decision.rights.rules == ("everybody",)


EC, ED, OTHER = ECKey.generate_key("P-256"), OKPKey.generate_key("Ed25519"), RSAKey.generate_key()


def unsigned(issuer):
    def part(table):
        return base64.urlsafe_b64encode(json.dumps(table).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none', 'typ': 'at+jwt'})}.{part(issuer.claims())}."


def with_public_key(issuer):
    """HS256, with the public key in PEM as the secret."""

    def part(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    header = {"alg": "HS256", "typ": "at+jwt", "kid": issuer.keys[0].kid}
    text = part(json.dumps(header).encode()) + b"." + part(json.dumps(issuer.claims()).encode())
    secret = issuer.keys[0].as_pem(private=False)
    return (text + b"." + part(hmac.digest(secret, text, hashlib.sha256))).decode()


def without(name):
    return lambda issuer: issuer.token(**{name: None})


def having(**changes):
    return lambda issuer: issuer.token(**changes)


def written(claims, **header):
    """A token whose claims are a text that is made of the usual ones."""

    def make(issuer):
        usual = {"alg": "RS256", "typ": "at+jwt", "kid": issuer.keys[0].kid}
        return sign(issuer.keys[0], {**usual, **header}, claims(json.dumps(issuer.claims())))

    return make


def doubled(name, value):
    return written(lambda claims: f'{claims[:-1]}, "{name}": {json.dumps(value)}}}')


REFUSED = {
    "alg none": unsigned,
    "HS256 with the public PEM": with_public_key,
    "a signature of another key": lambda issuer: issuer.token(
        key=OTHER, header={"kid": issuer.keys[0].kid}
    ),
    "PS256 with an RS256 key": lambda issuer: issuer.token(header={"alg": "PS512"}),
    "foreign kid": lambda issuer: issuer.token(header={"kid": "invented"}),
    "wrong audience": having(aud="https://other.example.com/mcp"),
    "a prefix of the audience": having(aud="https://tap.example.com"),
    "the audience with more behind it": having(aud="https://tap.example.com/mcp/more"),
    "the audience with a slash": having(aud="https://tap.example.com/mcp/"),
    "an audience as an object": having(aud={"https://tap.example.com/mcp": 1}),
    "no audience": without("aud"),
    "wrong issuer": having(iss="https://evil.example.com"),
    "the issuer with a slash": lambda issuer: issuer.token(iss=f"{issuer.url}/"),
    "expired": having(exp=int(time.time()) - 3600),
    "no exp": without("exp"),
    "exp as a text": lambda issuer: issuer.token(exp=str(int(time.time()) + 60)),
    "exp as true": having(exp=True),
    "exp that is not a number": written(lambda claims: re.sub(r'"exp": \d+', '"exp": NaN', claims)),
    "nbf in the future": lambda issuer: issuer.token(nbf=int(time.time()) + 3600),
    "iat in the future": lambda issuer: issuer.token(iat=int(time.time()) + 3600),
    "an ID token by its typ": lambda issuer: issuer.token(header={"typ": "JWT"}),
    "no typ": lambda issuer: issuer.token(header={"typ": None}),
    "an ID token by its nonce": having(nonce="n"),
    "an ID token by its at_hash": having(at_hash="h"),
    "an ID token of Cognito": having(token_use="id"),
    "a member twice": doubled("sub", "bob"),
    "an audience twice": doubled("aud", list(AUDIENCES)),
    "neither subject nor client": lambda issuer: issuer.token(sub=None, client_id=None),
    "bound to a certificate": having(cnf={"x5t#S256": "abc"}),
    "critical members": written(str, crit=["exp"], exp=1),
    "critical members that are known": written(str, crit=["kid"]),
    "critical members that are none": written(str, crit=5),
    "not a token": lambda _: "eyJ.x.y",
    "a JWE": lambda _: "eyJhbGciOiJkaXIifQ..a.b.c",
    "an opaque token": lambda _: "opaque-token-of-nobody",
    "longer than any token": lambda issuer: issuer.token(padding="x" * 20_000),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
async def test_a_token_is_refused_that_is(case, tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        await decide(verifier, issuer.token())

        with pytest.raises(TokenRefused) as caught:
            await decide(verifier, REFUSED[case](issuer))
        assert "alice" not in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param({"use": "enc"}, id="a key for encryption"),
        pytest.param({"key_ops": ["encrypt"]}, id="a key for other operations"),
        pytest.param({"alg": "RS512"}, id="a key for another algorithm"),
    ],
)
async def test_a_signature_is_refused_by(key, tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        issuer.published = [
            {**issuer.keys[0].as_dict(private=False), **key},
            OTHER.as_dict(private=False),
        ]

        with pytest.raises(TokenRefused):
            await decide(verifier, issuer.token())


async def test_symmetric_and_private_keys_of_a_key_set_are_ignored(tmp_path):
    secret = OctKey.generate_key(256, {"kid": "first"})
    async with verifying(tmp_path) as (issuer, verifier):
        issuer.published = [
            secret.as_dict(private=True),
            issuer.keys[0].as_dict(private=True),
            OTHER.as_dict(private=False),
        ]

        with pytest.raises(TokenRefused):
            await decide(verifier, issuer.token(key=secret))
        with pytest.raises(TokenRefused):
            await decide(verifier, issuer.token())


async def test_a_token_without_a_kid_needs_a_provider_with_only_one_key(tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        assert await decide(verifier, issuer.token(header={"kid": None}))
    several = {"keys": [RSAKey.generate_key(2048, {"kid": str(number)}) for number in range(2)]}
    async with verifying(tmp_path, issuer=several) as (issuer, verifier):
        with pytest.raises(TokenRefused):
            await decide(verifier, issuer.token(header={"kid": None}))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param({"nonce": "abc", "x5t": "abc"}, id="Entra"),
        pytest.param({"signer": "arn:aws:x"}, id="AWS"),
        pytest.param({"x5c": ["A" * 2000]}, id="long"),
    ],
)
async def test_members_that_providers_add_to_the_header_do_no_harm(header, tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        assert await decide(verifier, written(str, **header)(issuer))


@pytest.mark.parametrize("key", [EC, ED], ids=["ES256", "EdDSA"])
async def test_other_kinds_of_keys_work(key, tmp_path):
    named = type(key).import_key({**key.as_dict(private=True), "kid": "other"})
    async with verifying(tmp_path, issuer={"keys": [named]}) as (issuer, verifier):
        assert await decide(verifier, issuer.token())


async def test_a_provider_may_have_another_typ_and_other_names_of_claims(tmp_path):
    settings = {"token_types": ("JWT",), "groups_claim": "realm_access.roles"}
    async with verifying(tmp_path, **settings) as (issuer, verifier):
        token = issuer.token(
            header={"typ": "JWT"}, client_id=None, azp="web", groups=None, scope=None,
            scp=["a", "b"], realm_access={"roles": ["ops"]},
        )  # fmt: skip
        decision = await decide(verifier, token)

        assert decision.token.groups == {"ops"}
        assert decision.token.scopes == {"a", "b"}
        assert decision.principal.client == "web"
        with pytest.raises(TokenRefused):
            await decide(verifier, issuer.token(header={"typ": "JWT"}, typ="ID"))


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": None},
        {"sub": "claude"},
        {"sub": "claude@clients"},
        {"gty": "client-credentials"},
        {"idtyp": "app"},
        {"preferred_username": "service-account-ci"},
    ],
    ids=str,
)
async def test_a_machine_is_never_a_person(claims, tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        decision = await decide(verifier, issuer.token(**claims))

        assert decision.principal.is_machine
        assert decision.principal.person is None
        person = await decide(verifier, issuer.token())
        assert person.principal.key != decision.principal.key


async def test_two_issuers_may_have_the_same_subject(tmp_path):
    async with tiny_issuer() as one, tiny_issuer() as other:
        access = AccessSettings(
            oidc={"one": OidcIssuer(issuer=one.url), "other": OidcIssuer(issuer=other.url)},
            rules=(EVERYBODY,),
        )
        verifier = Verifier(access, People(tmp_path))
        keys = [(await decide(verifier, issuer.token())).principal.key for issuer in (one, other)]

        assert keys[0] != keys[1]
        with pytest.raises(TokenRefused):  # signed by the one, in the name of the other
            await decide(verifier, one.token(iss=other.url))


async def test_scopes_that_every_request_needs_are_asked_for(tmp_path):
    async with verifying(tmp_path, scopes=("tools", "more")) as (issuer, verifier):
        with pytest.raises(MissingScopes) as caught:
            await decide(verifier, issuer.token())

        assert caught.value.scopes == ("more",)
        assert await decide(verifier, issuer.token(scope="more tools"))


async def test_who_meets_no_rule_is_refused_with_a_sentence(tmp_path):
    rule = AccessRule(name="ops", groups=("ops",))
    async with verifying(tmp_path, rule) as (issuer, verifier):
        with pytest.raises(NotAdmitted, match="no access rule applies to 'alice' of corp"):
            await decide(verifier, issuer.token())


async def test_a_decision_is_remembered_for_a_minute_or_until_the_token_expires(tmp_path):
    clock = Clock()
    async with verifying(tmp_path, clock=clock) as (issuer, verifier):
        token = issuer.token()
        await decide(verifier, token)
        assert verifier.remembered(token.encode(), RESOURCE)
        assert not verifier.remembered(token.encode(), b"/mcp/other")

        clock.passed = REMEMBERED + 1
        assert not verifier.remembered(token.encode(), RESOURCE)
        assert verifier.decide_now(token.encode(), RESOURCE, AUDIENCES)
        clock.passed = 700
        with pytest.raises(TokenRefused, match="expired"):
            verifier.decide_now(token.encode(), RESOURCE, AUDIENCES)


async def test_a_rotated_key_is_fetched_once_and_no_token_refused(tmp_path):
    clock = Clock()
    async with verifying(tmp_path, clock=clock) as (issuer, verifier):
        for number in range(200):
            if number == 100:
                clock.passed += 40
                issuer.rotate()
            await decide(verifier, issuer.token())

        assert issuer.fetches == 2


async def test_a_key_that_changes_just_after_we_looked_is_fetched_at_once(tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        await decide(verifier, issuer.token())
        issuer.rotate()
        await decide(verifier, issuer.token())
        issuer.rotate("third")
        # not 401, which would send people to log in
        with pytest.raises(ProviderDown) as caught:
            await decide(verifier, issuer.token())

        assert 0 < caught.value.retry_after <= 60
        assert issuer.fetches == 2


async def test_ten_thousand_invented_keys_cause_at_most_two_fetches(tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        genuine = issuer.token()
        await decide(verifier, genuine)
        header, claims, signature = issuer.token().split(".")
        for number in range(10_000):
            table = {"alg": "RS256", "typ": "at+jwt", "kid": f"invented-{number}"}
            header = base64.urlsafe_b64encode(json.dumps(table).encode()).rstrip(b"=").decode()
            with pytest.raises((TokenRefused, ProviderDown)):
                await decide(verifier, f"{header}.{claims}.{signature}")

        assert issuer.fetches <= 2
        assert await decide(verifier, issuer.token())


async def test_only_tokens_that_could_be_valid_cause_a_fetch(tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        for case in ("wrong audience", "expired", "no exp", "alg none", "no typ"):
            with pytest.raises(TokenRefused):
                await decide(verifier, REFUSED[case](issuer))

        assert issuer.fetches == 0


async def test_known_people_go_on_while_the_provider_is_away_but_not_forever(tmp_path):
    clock = Clock()
    async with verifying(tmp_path, clock=clock) as (issuer, verifier):
        await decide(verifier, issuer.token())
        issuer.is_down = True
        for minutes in (1, 5, 10, 11):
            clock.passed = minutes * 60
            await verifier.renew_keys()
            later = int(clock.wall())
            assert await decide(verifier, issuer.token(iat=later, exp=later + 60))
        clock.passed = 25 * 3600
        later = int(clock.wall())
        with pytest.raises(ProviderDown):
            await decide(verifier, issuer.token(iat=later, exp=later + 60))


async def test_a_key_set_that_cannot_be_used_does_not_replace_the_last_one(tmp_path):
    clock = Clock()
    async with verifying(tmp_path, clock=clock) as (issuer, verifier):
        await decide(verifier, issuer.token())
        for published, status in (([], 200), (None, 500), ([{"kty": "RSA"}], 200)):
            issuer.published, issuer.status = published, status
            clock.passed += 700
            await verifier.renew_keys()
            later = int(clock.wall())
            assert await decide(verifier, issuer.token(iat=later, exp=later + 60))


async def test_without_its_provider_at_first_nothing_is_known_about_a_token(tmp_path):
    clock = Clock()
    async with verifying(tmp_path, clock=clock) as (issuer, verifier):
        issuer.is_down = True
        with pytest.raises(ProviderDown):
            await decide(verifier, issuer.token())
        issuer.is_down = False
        clock.passed += 10

        assert await decide(verifier, issuer.token())


async def test_a_provider_that_calls_itself_otherwise_is_not_used(tmp_path):
    async with tiny_issuer() as issuer:
        access = AccessSettings(
            oidc={"corp": OidcIssuer(issuer=f"{issuer.url}/")}, rules=(EVERYBODY,)
        )
        verifier = Verifier(access, People(tmp_path))
        with pytest.raises(ProviderDown):
            await decide(verifier, issuer.token(iss=f"{issuer.url}/"))


OPAQUE = {"client_id": "gateway", "client_secret": "s3cret", "introspect": True}


async def test_an_opaque_token_is_asked_about_once_a_minute(tmp_path):
    clock = Clock()
    async with verifying(tmp_path, clock=clock, **OPAQUE) as (issuer, verifier):
        issuer.active["opaque"] = {"active": True, **issuer.claims()}
        for _ in range(3):
            decision = await decide(verifier, "opaque")
        assert decision.principal.subject == "alice"
        assert [form["token"] for form in issuer.questions] == ["opaque"]
        assert issuer.questions[0]["token_type_hint"] == "access_token"

        del issuer.active["opaque"]  # removed at the provider
        clock.passed = REMEMBERED
        with pytest.raises(TokenRefused):
            await decide(verifier, "opaque")
        with pytest.raises(TokenRefused):
            await decide(verifier, "opaque")
        assert len(issuer.questions) == 2


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"active": False}, id="not active"),
        pytest.param({"active": "true"}, id="active in words"),
        pytest.param({"aud": "https://other.example.com"}, id="another audience"),
        pytest.param({"aud": None}, id="no audience"),
        pytest.param({"iss": "https://other.example.com"}, id="another issuer"),
        pytest.param({"exp": 1}, id="expired"),
        pytest.param({"exp": "soon"}, id="exp as a text"),
        pytest.param({"sub": None, "client_id": None}, id="of nobody"),
    ],
)
async def test_an_opaque_token_is_refused_that_is(changes, tmp_path):
    async with verifying(tmp_path, **OPAQUE) as (issuer, verifier):
        issuer.active["opaque"] = {"active": True, **issuer.claims(**changes), **changes}

        with pytest.raises(TokenRefused):
            await decide(verifier, "opaque")


@pytest.mark.parametrize("status", [401, 429, 500])
async def test_a_failing_introspection_says_nothing_about_the_token(status, tmp_path):
    async with verifying(tmp_path, **OPAQUE) as (issuer, verifier):
        issuer.introspection_status = status

        with pytest.raises(ProviderDown):
            await decide(verifier, "opaque")


async def test_an_opaque_token_of_a_machine_has_no_subject(tmp_path):
    async with verifying(tmp_path, **OPAQUE) as (issuer, verifier):
        issuer.active["opaque"] = {"active": True, **issuer.claims(sub=None)}

        assert (await decide(verifier, "opaque")).principal.person is None


async def test_a_revoked_person_is_out_with_every_token_until_restored(tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        await decide(verifier, issuer.token())
        who = {"issuer": issuer.url, "subject": "alice"}
        People(tmp_path).decide(Revocation(kind="revoked", at=time.time(), **who))
        new = verifier.refresh()

        assert (
            verifier.concerns(new, (await decide(verifier, issuer.token(sub="bob"))).principal)
            is False
        )
        for changes in ({}, {"client_id": "other"}, {"iat": int(time.time()) + 10}):
            with pytest.raises(TokenRefused, match="revoked"):
                await decide(verifier, issuer.token(**changes))
        People(tmp_path).decide(Revocation(kind="restored", at=time.time() + 1, **who))
        verifier.refresh()
        assert await decide(verifier, issuer.token())


async def test_a_logout_ends_the_tokens_from_before_it(tmp_path):
    settings = {"client_id": "gateway"}
    async with verifying(tmp_path, **settings) as (issuer, verifier):
        before = issuer.token(sid="s1")
        await decide(verifier, before)
        entry = await verifier.log_out("corp", logout(issuer))
        People(tmp_path).decide(entry)
        verifier.refresh()

        with pytest.raises(TokenRefused, match="logged out"):
            await decide(verifier, before)
        assert await decide(verifier, issuer.token(iat=int(time.time()) + 5))
        assert await decide(verifier, issuer.token(sub="bob"))


async def test_a_logout_may_name_only_the_session(tmp_path):
    async with verifying(tmp_path, client_id="gateway") as (issuer, verifier):
        before, other = issuer.token(sid="s1"), issuer.token(sid="s2")
        principal = (await decide(verifier, before)).principal
        entry = await verifier.log_out("corp", logout(issuer, sub=None, sid="s1"))
        People(tmp_path).decide(entry)
        new = verifier.refresh()

        assert verifier.concerns(new, principal)
        with pytest.raises(TokenRefused, match="logged out"):
            await decide(verifier, before)
        assert await decide(verifier, other)


EVENT = {"http://schemas.openid.net/event/backchannel-logout": {}}


def logout(issuer: TinyIssuer, *, header=None, key=None, **changes):
    claims = {
        "iss": issuer.url, "aud": "gateway", "iat": int(time.time()), "jti": "1", "sub": "alice",
        "exp": int(time.time()) + 60, "events": EVENT, **changes,
    }  # fmt: skip
    claims = {name: value for name, value in claims.items() if value is not None}
    key = key or issuer.keys[0]
    full = {"alg": "RS256", "typ": "logout+jwt", "kid": issuer.keys[0].kid, **(header or {})}
    return jwt.encode(full, claims, key, algorithms=["RS256"])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"aud": "another"}, id="for another client"),
        pytest.param({"iss": "https://evil.example.com"}, id="of another issuer"),
        pytest.param({"events": {}}, id="without the event"),
        pytest.param({"events": None}, id="without events"),
        pytest.param({"nonce": "n"}, id="with a nonce: an ID token"),
        pytest.param({"sub": None}, id="about nobody"),
        pytest.param({"iat": 1}, id="from long ago"),
        pytest.param({"exp": 1}, id="expired"),
        pytest.param({"header": {"typ": "at+jwt"}}, id="an access token"),
        pytest.param({"key": OTHER}, id="signed by somebody else"),
    ],
)
async def test_a_logout_token_is_refused_that_is(changes, tmp_path):
    async with verifying(tmp_path, client_id="gateway") as (issuer, verifier):
        with pytest.raises(TokenRefused):
            await verifier.log_out("corp", logout(issuer, **changes))


async def test_what_one_provider_may_issue_tokens_for_counts_for_no_other(tmp_path):
    async with tiny_issuer() as corp, tiny_issuer() as other:
        access = AccessSettings(
            oidc={
                "corp": OidcIssuer(issuer=corp.url, audiences=("api://tap",)),
                "other": OidcIssuer(issuer=other.url),
            },
            rules=(EVERYBODY,),
        )
        verifier = Verifier(access, People(tmp_path))

        await decide(verifier, corp.token(aud="api://tap"))
        with pytest.raises(TokenRefused, match="another audience"):
            await decide(verifier, other.token(aud="api://tap"))


async def test_a_token_that_one_resource_refuses_is_good_at_its_own(tmp_path):
    async with verifying(tmp_path, **OPAQUE, scopes=("tools",)) as (issuer, verifier):
        issuer.active["opaque"] = {"active": True, **issuer.claims()}
        elsewhere = ["https://tap.example.com/mcp/little"]
        for _ in range(2):
            with pytest.raises(TokenRefused, match="another audience"):
                await verifier.decide(b"opaque", b"/mcp/little", elsewhere)
        assert (await decide(verifier, "opaque")).principal.subject == "alice"

        issuer.active["little"] = {"active": True, **issuer.claims(scope="other")}
        for _ in range(2):  # remembered as what it is: more scopes would help
            with pytest.raises(MissingScopes):
                await decide(verifier, "little")


async def test_changed_settings_keep_the_keys_while_the_provider_is_away(tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        await decide(verifier, issuer.token(sid="s1"))
        issuer.is_down = True
        access = AccessSettings(oidc=verifier.access.oidc, rules=(AccessRule(name="other"),))
        after = Verifier(access, People(tmp_path))
        after.take_over(verifier)

        decision = await decide(after, issuer.token())
        assert decision.rights.rules == ("other",)
        logout_of = Revocation(kind="logout", at=time.time(), issuer=issuer.url, session="s1")
        assert after.concerns([logout_of], decision.principal)


async def test_changed_settings_do_not_hide_a_decision_of_the_same_moment(tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        entry = Revocation(kind="logout", at=time.time(), issuer=issuer.url, subject="alice")
        verifier.people.decide(entry)
        after = Verifier(verifier.access, People(tmp_path))
        after.take_over(verifier)

        assert after.refresh() == {entry}
        assert after.refresh() is None


async def test_a_session_at_the_provider_may_have_several_clients(tmp_path):
    async with verifying(tmp_path) as (issuer, verifier):
        principals = [
            (await decide(verifier, issuer.token(sid="s1", client_id=client))).principal
            for client in ("claude", "codex")
        ]
        other = (await decide(verifier, issuer.token(sid="s2", sub="bob"))).principal
        entry = Revocation(kind="logout", at=time.time(), issuer=issuer.url, session="s1")

        assert [verifier.concerns([entry], principal) for principal in principals] == [True, True]
        assert not verifier.concerns([entry], other)
        assert verifier.people_of([entry]) == {principals[0].person}


def test_decisions_do_not_pile_up(tmp_path):
    people, long_ago = People(tmp_path), time.time() - 400 * 24 * 3600
    person = {"issuer": "https://login.example", "subject": "alice"}
    people.decide(
        Revocation(kind="logout", at=long_ago, **person),
        Revocation(kind="token", at=long_ago, digest="d"),
    )
    for moment in range(20):
        people.decide(Revocation(kind="revoked", at=2.0 * moment, **person))
        people.decide(Revocation(kind="restored", at=2.0 * moment + 1, **person))
    latest = Revocation(kind="revoked", at=99.0, **person)
    people.decide(latest)

    assert people.revocations().entries == {latest}


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/jwks",
        "file:///etc/passwd",
        "http://login.example.com/jwks",
    ],
)
@pytest.mark.parametrize("endpoint", ["jwks_uri", "introspection_endpoint"])
async def test_a_provider_cannot_send_us_into_the_private_network(tmp_path, endpoint, address):
    issuer = {"elsewhere": {endpoint: address}}
    async with verifying(tmp_path, issuer=issuer, **OPAQUE) as (provider, verifier):
        token = provider.token() if endpoint == "jwks_uri" else "opaque"
        with pytest.raises(ProviderDown):
            await decide(verifier, token)


async def test_clocks_may_differ_by_the_leeway_and_no_more(tmp_path):
    async with verifying(tmp_path, leeway=30) as (issuer, verifier):
        now = int(time.time())
        assert await decide(verifier, issuer.token(exp=now - 10, nbf=now + 10, iat=now + 10))
        for late in ({"exp": now - 60}, {"nbf": now + 60}, {"iat": now + 60}):
            with pytest.raises(TokenRefused):
                await decide(verifier, issuer.token(**late))
