"""The gateway as a resource server: who comes in with an identity provider's token, and how far."""

import base64
import hashlib
import json
import time
from contextlib import asynccontextmanager, closing

import anyio
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from multitap.config import Profile
from multitap.config.access import AccessRule, AccessSettings, OidcIssuer
from multitap.errors import ConfigError
from multitap.gateway.fronts.access import AccessRules, open_access
from multitap.gateway.fronts.resource_server import ResourceServer, canonical_url
from multitap.identity.people import People, Revocation
from multitap.identity.verifier import REMEMBERED, Verifier
from multitap.store.audit_log import AuditFile
from multitap.trust.audit import lines
from multitap.trust.tokens import AccessTokens
from tests.gateway.hostile.raw import call, hello, http, in_session, message, stateless
from tests.gateway.hostile.stage import open_stage
from tests.identity.test_verifier import OPAQUE, Clock, logout
from tests.identity.tiny_issuer import tiny_issuer
from tests.waiting import PATIENCE

PUBLIC = "https://tap.example.com"
METADATA = "/.well-known/oauth-protected-resource"
EVERYBODY = AccessRule(name="everybody")


@pytest.fixture(autouse=True)
def _own_data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@asynccontextmanager
async def guarded(
    tmp_path, *rules, public=PUBLIC, profiles=None, make_verifier=Verifier, **settings
):
    """A gateway with an identity provider."""
    async with tiny_issuer() as issuer:
        access = AccessSettings(
            oidc={"corp": OidcIssuer(issuer=issuer.url, **settings)}, rules=rules or (EVERYBODY,)
        )

        def resources(gateway):
            return ResourceServer(
                public,
                lambda: gateway.hub.settings.access,
                lambda: gateway.hub.settings.profiles,
                make_verifier=make_verifier,
            )

        wanted = AccessRules(host="127.0.0.1", hosts=("tap.example.com",), has_providers=True)
        with open_access(wanted) as allowed:
            async with open_stage(
                tmp_path / "state",
                allowed=allowed,
                resources=resources,
                access=access,
                profiles=profiles or {},
            ) as stage:
                yield issuer, stage


def bearer(token):
    return {"authorization": f"Bearer {token}"}


async def ask(stage, request):
    async with stage.dial() as line:
        return await line.asks(request)


async def tools(stage, headers, path="/mcp"):
    response = await ask(stage, stateless(1, "tools/list", headers=headers, path=path))
    assert response.status == 200, response.body
    return {tool["name"] for tool in response.message["result"]["tools"]}


def challenge(response):
    scheme, _, rest = response.headers["www-authenticate"].partition(" ")
    members = dict(part.split("=", 1) for part in rest.split(", "))
    return scheme, {name: value.strip('"') for name, value in members.items()}


async def test_a_person_with_a_token_is_served_in_both_eras(tmp_path):
    async with guarded(tmp_path) as (issuer, stage), stage.dial() as line:
        headers = bearer(issuer.token())
        opened = await line.asks(http(body=hello(), **headers))
        session = opened.headers["mcp-session-id"]
        answer = await line.asks(in_session(session, call(1, "echo", said="hi"), **headers))

        assert json.loads(answer.text) == "hi"
        assert len(await tools(stage, headers)) == 14


async def test_the_metadata_is_at_all_three_places_and_needs_no_token(tmp_path):
    profiles = {"little": Profile(servers=("asks",))}
    async with guarded(tmp_path, profiles=profiles, scopes=("tools",)) as (issuer, stage):
        missing = await ask(stage, stateless(1, "tools/list"))
        scheme, members = challenge(missing)
        assert missing.status == 401
        assert (scheme, "error" in members) == ("Bearer", False)
        assert members == {"resource_metadata": f"{PUBLIC}{METADATA}/mcp", "scope": "tools"}

        for path, resource in (
            (METADATA, "/mcp"),
            (f"{METADATA}/mcp", "/mcp"),
            (f"{METADATA}/mcp/little", "/mcp/little"),
            (f"{METADATA}/sse", "/sse"),
        ):
            for host in ("127.0.0.1", "tap.example.com"):
                answer = await ask(
                    stage, http("GET", path, host=host, origin="https://web.example")
                )
                document = json.loads(answer.body)
                assert answer.status == 200
                assert answer.headers["access-control-allow-origin"] == "*"
                assert document["resource"] == f"{PUBLIC}{resource}"
                assert document["authorization_servers"] == [issuer.url]
                assert document["bearer_methods_supported"] == ["header"]
                assert document["scopes_supported"] == ["tools"]
        assert (await ask(stage, http("GET", f"{METADATA}/mcp/other"))).status == 404
        page = {"origin": "https://web.example", "access-control-request-method": "GET"}
        assert (await ask(stage, http("OPTIONS", METADATA, **page))).status == 204


async def test_each_path_names_its_own_metadata_and_the_public_name_not_the_requested_one(tmp_path):
    profiles = {"little": Profile(servers=("asks",))}
    async with guarded(tmp_path, profiles=profiles) as (_, stage):
        for path, expected in (("/mcp", "/mcp"), ("/mcp/little", "/mcp/little"), ("/sse", "/sse")):
            method = "GET" if path == "/sse" else "POST"
            forwarded = {"x-forwarded-host": "evil.example", "x-forwarded-proto": "http"}
            answer = await ask(stage, http(method, path, body=hello(), **forwarded))
            _, members = challenge(answer)
            assert members["resource_metadata"] == f"{PUBLIC}{METADATA}{expected}"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"exp": 1}, id="expired"),
        pytest.param({"aud": PUBLIC}, id="CVE-2025-69196: for the host, not for the resource"),
        pytest.param({"aud": f"{PUBLIC}/mcp/"}, id="with a slash"),
        pytest.param({"aud": "https://another.example/mcp"}, id="for another server"),
        pytest.param({"iss": "https://evil.example"}, id="of another issuer"),
    ],
)
async def test_a_token_gets_401_that_is(changes, tmp_path):
    async with guarded(tmp_path, scopes=("tools",)) as (issuer, stage):
        for _ in range(2):  # before and after the keys are known
            refused = await ask(
                stage, stateless(1, "tools/list", headers=bearer(issuer.token(**changes)))
            )
            _, members = challenge(refused)

            assert refused.status == 401
            assert members["error"] == "invalid_token"
            assert members["scope"] == "tools"
            await tools(stage, bearer(issuer.token()))


async def test_a_token_in_the_query_is_no_token(tmp_path):
    async with guarded(tmp_path) as (issuer, stage):
        path = f"/mcp?access_token={issuer.token()}"

        assert (await ask(stage, stateless(1, "tools/list", path=path))).status == 401


async def test_listed_audiences_are_accepted_as_exact_texts(tmp_path):
    async with guarded(tmp_path, audiences=("api://tap", PUBLIC)) as (issuer, stage):
        for audience in ("api://tap", PUBLIC, ["x", f"{PUBLIC}/mcp"]):
            assert await tools(stage, bearer(issuer.token(aud=audience)))
        for audience in ("api://tap/x", "api://ta", "API://tap", ["x"]):
            headers = bearer(issuer.token(aud=audience))
            assert (await ask(stage, stateless(1, "ping", headers=headers))).status == 401


async def test_each_profile_is_a_resource_of_its_own(tmp_path):
    profiles = {"little": Profile(servers=("asks",)), "other": Profile(servers=("counts",))}
    async with guarded(tmp_path, profiles=profiles) as (issuer, stage):
        little = bearer(issuer.token(aud=f"{PUBLIC}/mcp/little"))

        assert len(await tools(stage, little, "/mcp/little")) == 7
        for path in ("/mcp", "/mcp/other", "/sse"):
            assert (await ask(stage, stateless(1, "ping", headers=little, path=path))).status == 401
        whole = bearer(issuer.token())
        answer = await ask(stage, stateless(1, "ping", headers=whole, path="/mcp/little"))
        assert answer.status == 401


async def test_profiles_have_paths_for_holders_of_our_own_tokens_as_well(tmp_path):
    secret, _ = AccessTokens().create("ci")
    profiles = {"little": Profile(servers=("asks",))}
    async with guarded(tmp_path, profiles=profiles) as (_, stage):
        assert len(await tools(stage, bearer(secret), "/mcp/little")) == 7
        assert len(await tools(stage, bearer(secret))) == 14
        unknown = stateless(1, "tools/list", headers=bearer(secret), path="/mcp/other")
        assert (await ask(stage, unknown)).status == 404


async def test_rules_give_the_union_of_tools_and_deny_wins(tmp_path):
    rules = (
        AccessRule(name="echo", groups=("dev",), allow=("counts_echo", "counts_touch")),
        AccessRule(name="asks", groups=("dev", "ops"), profile="little", allow=("*_echo",)),
        AccessRule(name="careful", subjects=("alice",), deny=("*_touch",)),
    )
    profiles = {"little": Profile(servers=("asks",))}
    async with guarded(tmp_path, *rules, profiles=profiles) as (issuer, stage):
        seen = {
            who: await tools(stage, bearer(issuer.token(sub=who, groups=groups)))
            for who, groups in (("alice", ["dev"]), ("bob", ["dev"]), ("carol", ["ops"]))
        }

        assert seen == {
            "alice": {"counts_echo", "asks_echo"},
            "bob": {"counts_echo", "counts_touch", "asks_echo"},
            "carol": {"asks_echo"},
        }
        hidden = stateless(
            1, "tools/call", name="counts_touch", arguments={}, headers=bearer(issuer.token())
        )
        assert "error" in (await ask(stage, hidden)).message


async def test_who_meets_no_rule_gets_403_with_a_sentence(tmp_path):
    async with guarded(tmp_path, AccessRule(name="ops", groups=("ops",))) as (issuer, stage):
        for _ in range(2):
            refused = await ask(stage, stateless(1, "ping", headers=bearer(issuer.token())))

            assert refused.status == 403
            assert b"no access rule applies to 'alice' of corp" in refused.body


async def test_missing_scopes_get_403_with_all_that_are_needed(tmp_path):
    async with guarded(tmp_path, scopes=("tools", "more")) as (issuer, stage):
        refused = await ask(stage, stateless(1, "ping", headers=bearer(issuer.token())))
        _, members = challenge(refused)

        assert refused.status == 403
        assert members["error"] == "insufficient_scope"
        assert members["scope"] == "tools more"
        assert members["resource_metadata"] == f"{PUBLIC}{METADATA}/mcp"


async def test_a_call_that_needs_more_scopes_asks_for_them_before_its_stream_starts(tmp_path):
    rules = (
        AccessRule(name="read", allow=("*_echo",)),
        AccessRule(name="write", scopes=("write",), allow=("*_stats",)),
    )
    async with guarded(tmp_path, *rules, scopes=("tools",)) as (issuer, stage):
        plain, wide = issuer.token(), issuer.token(scope="tools write")
        assert "counts_stats" in await tools(stage, bearer(plain))
        asked = {"name": "counts_stats", "arguments": {}}
        for _ in range(2):
            refused = await ask(stage, stateless(1, "tools/call", headers=bearer(plain), **asked))
            _, members = challenge(refused)
            assert refused.status == 403
            assert members["error"] == "insufficient_scope"
            assert members["scope"] == "tools write"
            assert refused.message["error"]["data"]["reason"] == "insufficient_scope"

        allowed = await ask(stage, stateless(1, "tools/call", headers=bearer(wide), **asked))
        assert "result" in allowed.message
        async with stage.dial() as line:  # a session goes on with the new token
            opened = await line.asks(http(body=hello(), **bearer(plain)))
            session = opened.headers["mcp-session-id"]
            stats = message(1, "tools/call", **asked)
            assert (await line.asks(in_session(session, stats, **bearer(plain)))).status == 403
            again = await line.asks(in_session(session, stats, **bearer(wide)))
            assert "result" in again.message
            assert (await line.asks(in_session(session, stats, **bearer(plain)))).status == 403


async def test_resources_of_a_server_are_hidden_from_tokens_that_lack_its_scope(tmp_path):
    rules = (
        AccessRule(name="read", profile="little"),
        AccessRule(name="write", scopes=("write",), profile="notes"),
    )
    profiles = {"little": Profile(servers=("asks",)), "notes": Profile(servers=("counts",))}
    async with guarded(tmp_path, *rules, profiles=profiles) as (issuer, stage):
        seen = []
        for scope in ("tools", "tools write"):
            headers = bearer(issuer.token(scope=scope))
            listed = await ask(stage, stateless(1, "resources/list", headers=headers))
            seen.append(bool(listed.message["result"]["resources"]))
            assert len(await tools(stage, headers)) == 14

        assert seen == [False, True]


async def test_cve_2026_52869_a_session_belongs_to_the_person_and_their_client(tmp_path):
    async with guarded(tmp_path) as (issuer, stage), stage.dial() as line:
        opened = await line.asks(http(body=hello(), **bearer(issuer.token())))
        session = opened.headers["mcp-session-id"]
        ping = message(1, "ping")
        for changes in ({"sub": "bob"}, {"client_id": "other"}, {"sub": None}):
            headers = bearer(issuer.token(**changes))
            assert (await line.asks(in_session(session, ping, **headers))).status == 404
            assert (await line.asks(http("GET", mcp_session_id=session, **headers))).status == 404
            assert (
                await line.asks(http("DELETE", mcp_session_id=session, **headers))
            ).status == 404
        renewed = bearer(issuer.token(iat=int(time.time()) + 1))
        assert (await line.asks(in_session(session, ping, **renewed))).status == 200


async def test_cve_2026_52870_a_parked_question_is_of_no_use_to_others(tmp_path):
    async with guarded(tmp_path) as (issuer, stage):
        able = {"elicitation": {"form": {}}}
        asked = {"name": "asks_ask", "arguments": {}, "able": able}
        first = await ask(
            stage, stateless(1, "tools/call", headers=bearer(issuer.token()), **asked)
        )
        state = first.message["result"]["requestState"]
        [key] = first.message["result"]["inputRequests"]
        answered = {
            **asked,
            "requestState": state,
            "inputResponses": {key: {"action": "accept", "content": {}}},
        }
        for changes in ({"sub": "bob"}, {"client_id": "other"}):
            stolen = stateless(2, "tools/call", headers=bearer(issuer.token(**changes)), **answered)
            assert "error" in (await ask(stage, stolen)).message
        renewed = stateless(3, "tools/call", headers=bearer(issuer.token()), **answered)
        assert "result" in (await ask(stage, renewed)).message


async def test_the_audit_log_has_issuer_subject_client_and_rules(tmp_path):
    rules = (AccessRule(name="dev", groups=("dev",)), AccessRule(name="all"))
    async with guarded(tmp_path, *rules) as (issuer, stage):
        asked = {"name": "counts_echo", "arguments": {"said": 1}}
        await ask(stage, stateless(1, "tools/call", headers=bearer(issuer.token()), **asked))
        await stage.gateway.hub.store.write_audit()
        with closing(AuditFile(tmp_path / "state")) as file:
            [line] = [line.record for line in lines(file, lambda record: record.kind == "call")]

        assert (line.issuer, line.user, line.client_id) == (issuer.url, "alice", "claude")
        assert (line.principal, line.access) == ("alice", "dev,all")


async def test_the_rate_of_a_rule_counts_for_all_tokens_of_a_person(tmp_path):
    rules = (
        AccessRule(name="slow", rate="2/h", groups=("dev",)),
        AccessRule(name="slower", rate="1/h", groups=("dev",)),
        AccessRule(name="fast", subjects=("bob",)),
    )
    async with guarded(tmp_path, *rules) as (issuer, stage):
        requests = [stateless(1, "tools/list", headers=bearer(issuer.token())) for _ in range(3)]
        assert [(await ask(stage, one)).status for one in requests] == [200, 200, 429]
        for _ in range(4):
            assert await tools(stage, bearer(issuer.token(sub="bob")))


async def test_revoking_a_person_ends_their_sessions_streams_and_connections(tmp_path):
    async with guarded(tmp_path) as (issuer, stage), stage.dial() as line, stage.dial() as other:
        headers, bobs = bearer(issuer.token()), bearer(issuer.token(sub="bob"))
        session = (await line.asks(http(body=hello(), **headers))).headers["mcp-session-id"]
        await line.send(http("GET", mcp_session_id=session, **headers))
        assert (await line.head())[0] == 200
        bob = (await other.asks(http(body=hello(), **bobs))).headers["mcp-session-id"]

        await revoke(issuer, "alice")
        with anyio.fail_after(PATIENCE):
            await line.closed()
            await stage.until(lambda: len(stage.front.sessions) == 1)
        refused = await ask(stage, in_session(session, message(1, "ping"), **headers))
        assert refused.status == 401
        assert b"revoked" in refused.body
        assert (await other.asks(in_session(bob, message(1, "ping"), **bobs))).status == 200


async def test_revoking_one_token_ends_its_stream_and_nothing_else(tmp_path):
    async with guarded(tmp_path) as (issuer, stage), stage.dial() as line:
        token = issuer.token()
        headers, other = bearer(token), bearer(issuer.token())
        session = (await line.asks(http(body=hello(), **headers))).headers["mcp-session-id"]
        await line.send(http("GET", mcp_session_id=session, **headers))
        assert (await line.head())[0] == 200

        entry = Revocation(
            kind="token", at=time.time(), digest=hashlib.sha256(token.encode()).hexdigest()
        )
        await anyio.to_thread.run_sync(People().decide, entry)
        with anyio.fail_after(PATIENCE):
            await line.closed()
        refused = await ask(stage, in_session(session, message(1, "ping"), **headers))
        assert refused.status == 401
        assert (await ask(stage, in_session(session, message(1, "ping"), **other))).status == 200


async def test_a_stream_of_an_opaque_token_ends_within_a_minute_of_the_tokens_end(tmp_path):
    clock = Clock()

    def make(access):
        return Verifier(access, clock=clock.wall, ages=clock.age)

    async with (
        guarded(tmp_path, make_verifier=make, **OPAQUE) as (issuer, stage),
        stage.dial() as line,
    ):
        issuer.active["opaque"] = {"active": True, **issuer.claims()}
        headers = bearer("opaque")
        session = (await line.asks(http(body=hello(), **headers))).headers["mcp-session-id"]
        await line.send(http("GET", mcp_session_id=session, **headers))
        assert (await line.head())[0] == 200
        del issuer.active["opaque"]
        clock.passed = REMEMBERED
        with anyio.fail_after(PATIENCE):
            await line.closed()

        assert len(issuer.questions) == 2


async def revoke(issuer, subject, kind="revoked"):
    entry = Revocation(kind=kind, at=time.time(), issuer=issuer.url, subject=subject)
    await anyio.to_thread.run_sync(People().decide, entry)


async def test_a_back_channel_logout_of_the_provider_takes_effect_at_once(tmp_path):
    async with guarded(tmp_path, client_id="gateway") as (issuer, stage), stage.dial() as line:
        headers = bearer(issuer.token())
        session = (await line.asks(http(body=hello(), **headers))).headers["mcp-session-id"]

        async def send(token, name="corp"):
            body = f"logout_token={token}".encode()
            kind = "application/x-www-form-urlencoded"
            return await ask(
                stage, http(path=f"/access/logout/{name}", body=body, content_type=kind)
            )

        assert (await send("nonsense")).status == 400
        assert (await send(logout(issuer), "other")).status == 400
        assert (await send(logout(issuer, aud="other"))).status == 400
        done = await send(logout(issuer))
        assert done.status == 200
        assert done.headers["cache-control"] == "no-store"
        with anyio.fail_after(PATIENCE):
            await stage.until(lambda: not len(stage.front.sessions))
        assert (await ask(stage, in_session(session, message(1, "ping"), **headers))).status == 401
        later = bearer(issuer.token(iat=int(time.time()) + 2))
        assert await tools(stage, later)


async def test_a_stream_ends_with_its_token_and_a_call_does_not(tmp_path):
    async with guarded(tmp_path, leeway=0) as (issuer, stage), stage.dial() as line:
        headers = bearer(issuer.token(exp=int(time.time()) + 3))
        session = (await line.asks(http(body=hello(), **headers))).headers["mcp-session-id"]
        await line.send(http("GET", mcp_session_id=session, **headers))
        assert (await line.head())[0] == 200
        with anyio.fail_after(PATIENCE):
            await line.closed()

        assert (await ask(stage, stateless(1, "ping", headers=headers))).status == 401


async def test_changed_rules_apply_to_people_who_are_here(tmp_path):
    async with guarded(tmp_path) as (issuer, stage), stage.dial() as line:
        headers = bearer(issuer.token())
        listing = stateless(1, "tools/list", headers=headers)
        assert len((await line.asks(listing)).message["result"]["tools"]) == 14
        hub = stage.gateway.hub
        narrow = AccessRule(name="narrow", allow=("counts_echo",))
        hub.apply(hub.settings.replace(access=hub.settings.access.replace(rules=(narrow,))))

        async def is_narrow():
            answer = await line.asks(listing)
            return len(answer.message["result"]["tools"]) == 1

        with anyio.fail_after(PATIENCE):
            while not await is_narrow():
                await anyio.sleep(0.05)


async def test_the_provider_being_down_is_503_and_no_reason_to_log_in_again(tmp_path):
    async with guarded(tmp_path) as (issuer, stage):
        issuer.is_down = True
        refused = await ask(stage, stateless(1, "ping", headers=bearer(issuer.token())))

        assert refused.status == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "www-authenticate" not in refused.headers


KEY = ECKey.generate_key("P-256")
BOUND = {"cnf": {"jkt": KEY.thumbprint()}}


def proof(token, *, key=KEY, header=None, path="/mcp", method="POST", **changes):
    digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=")
    claims = {
        "jti": str(time.perf_counter_ns()), "htm": method, "htu": f"{PUBLIC}{path}",
        "iat": int(time.time()), "ath": digest.decode(), **changes,
    }  # fmt: skip
    full = {"alg": "ES256", "typ": "dpop+jwt", "jwk": key.as_dict(private=False), **(header or {})}
    return jwt.encode(full, claims, key, algorithms=["ES256"])


async def test_a_bound_token_needs_a_new_proof_with_every_request(tmp_path):
    async with guarded(tmp_path) as (issuer, stage), stage.dial() as line:
        token = issuer.token(**BOUND)
        for _ in range(3):
            headers = {"authorization": f"DPoP {token}", "dpop": proof(token)}
            assert (await line.asks(stateless(1, "tools/list", headers=headers))).status == 200
        used = await ask(stage, stateless(1, "tools/list", headers=headers))

        assert used.status == 401
        assert 'error="invalid_dpop_proof"' in used.headers["www-authenticate"]


OTHER_KEY = ECKey.generate_key("P-256")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda token: {"authorization": f"Bearer {token}"}, id="as a bearer token"),
        pytest.param(lambda token: {"authorization": f"DPoP {token}"}, id="without a proof"),
        *(
            pytest.param(
                lambda token, changes=changes: {
                    "authorization": f"DPoP {token}",
                    "dpop": proof(token, **changes),
                },
                id=name,
            )
            for name, changes in {
                "of another key": {"key": OTHER_KEY},
                "for another method": {"method": "GET"},
                "for another address": {"htu": "https://evil.example/mcp"},
                "for another token": {"ath": "x"},
                "from long ago": {"iat": 1},
                "of another type": {"header": {"typ": "JWT"}},
                "with another key in it": {"header": {"jwk": OTHER_KEY.as_dict(private=False)}},
            }.items()
        ),
    ],
)
async def test_a_bound_token_is_refused(make, tmp_path):
    async with guarded(tmp_path) as (issuer, stage):
        await tools(stage, bearer(issuer.token()))
        headers = make(issuer.token(**BOUND))

        assert (await ask(stage, stateless(1, "tools/list", headers=headers))).status == 401


async def test_a_provider_may_require_bound_tokens(tmp_path):
    async with guarded(tmp_path, require_dpop=True) as (issuer, stage):
        assert (
            await ask(stage, stateless(1, "ping", headers=bearer(issuer.token())))
        ).status == 401
        document = json.loads((await ask(stage, http("GET", METADATA))).body)

        assert document["dpop_bound_access_tokens_required"] is True


async def test_our_own_tokens_stay_beside_it_and_nobody_comes_in_without(tmp_path):
    secret, _ = AccessTokens().create("ci")
    async with guarded(tmp_path) as (_, stage):
        assert len(await tools(stage, bearer(secret))) == 14
        assert (await ask(stage, stateless(1, "tools/list"))).status == 401


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("https://Tap.Example.com/", "https://tap.example.com"),
        ("HTTPS://tap.example.com/mcp", "https://tap.example.com"),
        ("https://example.com/tap/", "https://example.com/tap"),
    ],
)
def test_the_public_url_has_a_canonical_form(written, canonical):
    assert canonical_url(written) == canonical


@pytest.mark.parametrize("written", [None, "tap.example.com", "ftp://x", "https://x/?y"])
def test_a_gateway_with_providers_needs_a_public_url(written):
    with pytest.raises(ConfigError):
        canonical_url(written)


async def test_a_gateway_below_a_path_has_its_metadata_at_the_root_of_the_host(tmp_path):
    async with guarded(tmp_path, public="https://example.com/tap") as (issuer, stage):
        missing = await ask(stage, stateless(1, "ping"))
        _, members = challenge(missing)
        assert members["resource_metadata"] == f"https://example.com{METADATA}/tap/mcp"
        document = json.loads((await ask(stage, http("GET", f"{METADATA}/tap/mcp"))).body)

        assert document["resource"] == "https://example.com/tap/mcp"
        assert await tools(stage, bearer(issuer.token(aud="https://example.com/tap/mcp")))


async def test_cve_2025_69196_a_token_for_another_resource_is_refused(tmp_path):
    profiles = {"little": Profile(servers=("asks",))}
    async with guarded(tmp_path, profiles=profiles) as (issuer, stage):
        for audience in (
            PUBLIC,
            f"{PUBLIC}/",
            f"{PUBLIC}/mcp/",
            f"{PUBLIC}/mcp/little",
            "https://tap.example.com.evil.example/mcp",
            "https://other.example.com/mcp",
            ["https://other.example.com/mcp"],
            None,
        ):
            headers = bearer(issuer.token(aud=audience))
            refused = await ask(stage, stateless(1, "tools/list", headers=headers))
            assert (refused.status, challenge(refused)[1]["error"]) == (401, "invalid_token")


async def test_cve_2026_52870_tasks_of_others_are_neither_listed_nor_read(tmp_path):
    async with guarded(tmp_path) as (issuer, stage), stage.dial() as line:

        async def session(**changes):
            headers = bearer(issuer.token(**changes))
            opened = await line.asks(http(body=hello(), **headers))
            return opened.headers["mcp-session-id"], headers

        async def asks(opened, method, **params):
            session_id, headers = opened
            asked = in_session(session_id, message(1, method, **params), **headers)
            return (await line.asks(asked)).message

        alice = await session()
        call_ = {"name": "counts_echo", "arguments": {"said": 1}, "task": {"ttl": 60_000}}
        made = (await asks(alice, "tools/call", **call_))["result"]["task"]["taskId"]
        assert [
            task["taskId"] for task in (await asks(alice, "tasks/list"))["result"]["tasks"]
        ] == [made]
        for changes in ({"sub": "bob"}, {"client_id": "other"}, {"sub": None}):
            other = await session(**changes)
            assert (await asks(other, "tasks/list"))["result"]["tasks"] == []
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                assert (await asks(other, method, taskId=made))["error"][
                    "message"
                ] == "no such task"
        # the same person with a renewed token, in another session
        renewed = await session(iat=int(time.time()) + 1)
        assert "result" in await asks(renewed, "tasks/get", taskId=made)


async def test_a_key_rotates_under_load_and_no_call_is_refused(tmp_path):
    async with guarded(tmp_path) as (issuer, stage):
        statuses = []

        async def call_ten_times():
            async with stage.dial() as line:
                for _ in range(10):
                    asked = {"name": "counts_echo", "arguments": {"said": 1}}
                    headers = bearer(issuer.token())
                    request = stateless(1, "tools/call", headers=headers, **asked)
                    statuses.append((await line.asks(request)).status)

        for second in range(3):
            if second == 1:
                issuer.rotate()
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(call_ten_times)

        assert statuses == [200] * 300
        assert issuer.fetches == 2


async def test_a_proof_may_say_what_its_body_is(tmp_path):
    async with guarded(tmp_path) as (issuer, stage):
        token = issuer.token(**BOUND)
        for more in ({}, {"content_digest": "sha-256=:abc=:"}):
            headers = {"authorization": f"DPoP {token}", "dpop": proof(token, **more)}
            assert await tools(stage, headers)
