"""Tokens at a running gateway: what each lets in, how fast it ends, and what ends with it."""

import asyncio
import json
import logging
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio
import pytest

from multitap.config import Profile
from multitap.gateway.fronts.access import AccessRules, open_access
from multitap.gateway.fronts.tokens import is_public, read_tokens
from multitap.trust.private_file import LARGEST
from multitap.trust.tokens import AccessTokens
from tests.gateway.hostile.raw import call, dial, hello, http, in_session, message, stateless
from tests.gateway.hostile.stage import open_stage
from tests.waiting import PATIENCE, until_told

ASKED = {"elicitation": {}}
PROFILES = {
    "little": Profile(servers=("asks",)),
    "much": Profile(),
    "quiet": Profile(deny=("*_noise",)),
}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return AccessTokens()


@pytest.fixture
def open_gate(tmp_path):
    @asynccontextmanager
    async def opens(*, token_file=None, require_token=False, profile=None):
        rules = AccessRules(host="127.0.0.1", token_file=token_file, require_token=require_token)
        with open_access(rules) as allowed:
            async with open_stage(
                tmp_path / "state",
                allowed=allowed,
                profile=profile,
                patience=60,
                profiles=PROFILES,
            ) as stage:
                yield stage

    return opens


def bearer(text):
    return {"authorization": f"Bearer {text}"}


def listing(text, path="/mcp"):
    return stateless(1, "tools/list", path=path, headers=bearer(text) if text else None)


def calling(text, tool, **arguments):
    return stateless(1, "tools/call", name=tool, arguments=arguments, headers=bearer(text))


async def status(stage, data):
    async with stage.dial() as line:
        return (await line.asks(data)).status


async def names(stage, text, path="/mcp"):
    async with stage.dial() as line:
        tools = (await line.asks(listing(text, path))).message["result"]["tools"]
        return {tool["name"] for tool in tools}


async def until_status(stage, data, wanted):
    async def has_it():
        # a request in progress when its token ends is cut off
        with suppress(asyncio.IncompleteReadError):
            return await status(stage, data) == wanted

    await until_told(has_it)


async def session_of(line, text, **params):
    opened = await line.asks(http(body=hello(**params), **bearer(text)))
    return opened.headers["mcp-session-id"]


async def test_a_token_that_is_created_is_let_in_at_once_and_one_that_is_revoked_is_not(
    store, open_gate
):
    async with open_gate(require_token=True) as stage:
        assert await status(stage, listing(None)) == 401
        text, token = store.create("ci")
        await until_status(stage, listing(text), 200)

        assert await status(stage, listing(text[:-1] + ("a" if text[-1] != "a" else "b"))) == 401
        store.revoke(token.id)
        await until_status(stage, listing(text), 401)


async def test_a_connection_that_is_known_does_not_outlive_its_token(store, open_gate):
    text, _ = store.create("ci")
    async with open_gate() as stage, stage.dial() as line:
        asked = calling(text, "counts_echo", said=1)
        for _ in range(5):
            assert (await line.asks(asked)).text == "1"
        store.revoke("ci")

        async def refusal():
            try:
                answer = await line.asks(asked)
            except asyncio.IncompleteReadError:
                return "cut off in progress"
            return answer.status if answer.status != 200 else None

        assert await until_told(refusal) in {401, "cut off in progress"}
        assert await line.closed() == b""


async def test_an_expired_token_ends_like_a_revoked_one(store, open_gate):
    text, _ = store.create("brief")
    async with open_gate() as stage, stage.dial() as line:
        assert (await line.asks(listing(text))).status == 200
        session = await session_of(line, text)
        store.rotate("brief", grace=0.5)  # only now: a busy machine may need long for the rest
        await stage.until(lambda: not [*stage.front.sessions])

        assert await status(stage, listing(text)) == 401
        assert await status(stage, in_session(session, message(1, "ping"), **bearer(text))) == 401


async def test_what_a_rotated_token_has_begun_goes_on_while_it_is_accepted(store, open_gate):
    text, _ = store.create("ci")
    async with open_gate() as stage, stage.dial() as line:
        session = await session_of(line, text)
        new, *_ = store.rotate("ci", grace=3600)

        async def is_known():
            return await status(stage, listing(new)) == 200

        await until_told(is_known)  # from here on, the gateway knows of the change

        assert await status(stage, in_session(session, message(1, "ping"), **bearer(text))) == 200


async def test_with_a_token_everything_of_it_ends(store, open_gate):
    text, _ = store.create("ci")
    kept, _ = store.create("kept")
    async with open_gate() as stage, AsyncExitStack() as lines:

        async def dialed():
            return await lines.enter_async_context(stage.dial())

        running, spared = await dialed(), await dialed()
        other = await session_of(spared, kept)
        await spared.send(in_session(other, call(9, "hang"), **bearer(kept)))
        session = await session_of(running, text)
        await running.send(in_session(session, call(1, "hang"), **bearer(text)))
        stateless_one, listening = await dialed(), await dialed()
        await stateless_one.send(calling(text, "counts_hang"))
        await listening.send(http("GET", mcp_session_id=session, **bearer(text)))
        assert (await listening.head())[0] == 200
        following, sse = await dialed(), await dialed()
        wanted = {"notifications": {"toolsListChanged": True}}
        await following.send(stateless(2, "subscriptions/listen", headers=bearer(text), **wanted))
        assert (await following.head())[0] == 200
        await sse.send(http("GET", "/sse", **bearer(text)))
        assert (await sse.head())[0] == 200
        ask = stateless(
            3, "tools/call", name="asks_ask", arguments={}, able=ASKED, headers=bearer(text)
        )
        parking = await dialed()
        ticket = (await parking.asks(ask)).message["result"]["requestState"]
        await stage.until_upstream(open=4)

        store.revoke("ci")

        for line in (running, stateless_one, listening, following, sse):
            await line.closed()
        await stage.until_upstream(open=1, cancelled=3)
        left = stage.remains()
        assert (left["sessions"], left["streams"], left["errands"]) == (1, 0, 0)
        again = stateless(
            4, "tools/call", name="asks_ask", arguments={}, able=ASKED, requestState=ticket,
            headers=bearer(kept),
        )  # fmt: skip
        assert "error" in (await (await dialed()).asks(again)).message
        assert [one.id for one in stage.front.sessions] == [other]


async def test_two_tokens_of_one_name_do_not_share_sessions(store, open_gate):
    (first, _), (second, _) = store.create("ann"), store.create("ann")
    async with open_gate() as stage, stage.dial() as line:
        session = await session_of(line, first)
        ping = message(1, "ping")

        assert (await line.asks(in_session(session, ping, **bearer(first)))).status == 200
        assert (await line.asks(in_session(session, ping, **bearer(second)))).status == 404
        assert (await line.asks(in_session(session, ping))).status == 404
        assert (
            await line.asks(http("DELETE", mcp_session_id=session, **bearer(second)))
        ).status == 404


async def test_a_token_shows_and_calls_only_the_tools_it_allows(store, open_gate):
    text, _ = store.create("ci", allow=("*_echo", "asks_n*"))
    async with open_gate() as stage, stage.dial() as line:
        assert await names(stage, text) == {"asks_echo", "counts_echo", "asks_noise"}
        assert (await line.asks(calling(text, "counts_echo", said=1))).text == "1"
        for hidden in ("counts_hang", "hang", "touch", "counts_stats"):
            refused = (await line.asks(calling(text, hidden))).message
            assert refused["error"]["code"] == -32602, hidden
        session = await session_of(line, text)
        listed = await line.asks(in_session(session, message(1, "tools/list"), **bearer(text)))
        assert {tool["name"] for tool in listed.message["result"]["tools"]} == await names(
            stage, text
        )
        assert (
            "error"
            in (await line.asks(in_session(session, call(2, "hang"), **bearer(text)))).message
        )


async def test_a_profile_is_never_left_by_naming_another(store, open_gate):
    plain, _ = store.create("plain")
    quiet, _ = store.create("quiet", profile="quiet")
    narrow, _ = store.create("narrow", profile="quiet", allow=("asks_*",))
    async with open_gate(profile="little") as stage:
        everything = await names(stage, None)
        assert {name.partition("_")[0] for name in everything} == {"asks"}
        for path in ("/mcp?profile=much", "/mcp?profile=little", "/mcp?profile=much&profile=quiet"):
            for text in (None, plain, quiet, narrow):
                assert await names(stage, text, path) <= everything
        assert await names(stage, quiet) == everything - {"asks_noise"}
        assert await names(stage, plain, "/mcp?profile=quiet") == everything - {"asks_noise"}
        assert await names(stage, quiet, "/mcp?profile=much") == everything - {"asks_noise"}
        assert await status(stage, listing(plain, "/mcp?profile=nope")) == 400
        async with stage.dial() as line:
            opened = await line.asks(http(path="/mcp?profile=much", body=hello()))
            session = opened.headers["mcp-session-id"]
            told = await line.asks(in_session(session, message(1, "tools/list")))
            assert {tool["name"] for tool in told.message["result"]["tools"]} == everything


async def test_a_token_makes_no_more_requests_than_its_rate(store, open_gate):
    text, _ = store.create("ci", rate="3/h")
    other, _ = store.create("other", rate="3/h")
    async with open_gate() as stage, stage.dial() as line:
        for _ in range(3):
            assert (await line.asks(listing(text))).status == 200
        refused = await line.asks(listing(text))

        assert refused.status == 429
        assert 0 < int(refused.headers["retry-after"]) <= 1200
        error = json.loads(refused.body)["error"]
        assert error["data"] == {
            "reason": "rate",
            "retryAfter": int(refused.headers["retry-after"]),
        }
        assert await line.closed() == b""
        assert await status(stage, http("GET", "/health", **bearer(text))) == 429
        assert await status(stage, listing(other)) == 200
        store.create("newcomer")  # the tokens are read again, and what is used stays used
        await stage.until(lambda: len(stage.front.sources) == 3)
        assert await status(stage, listing(text)) == 429


async def test_a_token_file_is_read_again_when_it_changes(store, open_gate, tmp_path, caplog):
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text("ann=a-token-of-ann-here\nbob=a-token-of-bob-here")
    async with open_gate(token_file=file) as stage, stage.dial() as line:
        assert await status(stage, listing(None)) == 401
        assert await status(stage, listing("a-token-of-ann-here")) == 200
        assert await status(stage, listing("a-token-of-bob-here")) == 200
        session = await session_of(line, "a-token-of-bob-here")
        file.write_text("ann=a-token-of-ann-here\nbob=another-token-of-bob")
        await until_status(stage, listing("a-token-of-bob-here"), 401)
        assert await status(stage, listing("another-token-of-bob")) == 200
        ping = in_session(session, message(1, "ping"), **bearer("another-token-of-bob"))
        assert await status(stage, ping) == 404

        caplog.set_level(logging.WARNING)
        for bad in ("", "ann=short", "ann=a-token-of-ann-here\nann=a-token-of-eve-here"):
            caplog.clear()
            file.write_text(bad)
            await stage.until(lambda: "keeping the previous tokens" in caplog.text)
            assert await status(stage, listing("a-token-of-ann-here")) == 200
            assert "a-token" not in caplog.text
        caplog.clear()
        file.unlink()
        await stage.until(lambda: "keeping the previous tokens" in caplog.text)
        assert await status(stage, listing("a-token-of-ann-here")) == 200


@pytest.mark.parametrize("size", [1, LARGEST + 1], ids=["incomplete", "too large"])
async def test_damaged_tokens_stay_what_they_were(store, open_gate, caplog, size):
    text, _ = store.create("ci")
    async with open_gate() as stage:
        assert await status(stage, listing(text)) == 200
        os.truncate(store.folder / "tokens.json", size)
        await stage.until(lambda: "keeping the previous tokens" in caplog.text)

        assert await status(stage, listing(text)) == 200


async def test_tokens_for_which_there_is_no_memory_are_read_again_and_end_nothing(
    store, open_gate, monkeypatch
):
    text, token = store.create("ci")
    async with open_gate() as stage:
        assert await status(stage, listing(text)) == 200
        failed = anyio.Event()

        def fail(self):
            failed.set()
            raise MemoryError

        with monkeypatch.context() as short:
            short.setattr(AccessTokens, "all", fail)
            store.revoke(token.id)
            with anyio.fail_after(PATIENCE):
                await failed.wait()

        await until_status(stage, listing(text), 401)


async def test_without_the_file_of_tokens_there_are_none(store, open_gate):
    text, _ = store.create("ci")
    async with open_gate() as stage:
        assert await status(stage, listing(text)) == 200
        (store.folder / "tokens.json").unlink()

        await until_status(stage, listing(text), 401)


async def test_when_a_token_was_used_is_known_afterwards(store, open_gate):
    (text, token), (_, unused) = store.create("ci"), store.create("unused")
    began = time.time()
    async with open_gate() as stage:
        assert await status(stage, listing(text)) == 200

    assert store.uses().keys() == {token.id}
    assert began <= store.uses()[token.id] <= time.time()
    assert unused.id not in store.uses()


async def test_a_wrong_token_is_refused_where_none_would_be_required(store, open_gate, caplog):
    caplog.set_level(logging.DEBUG)
    text, _ = store.create("ci")
    store.revoke("ci")
    async with open_gate() as stage:
        assert await status(stage, listing(None)) == 200
        assert await status(stage, listing(text)) == 401
        for path in ("/health", "/metrics", "/sse", "/mcp", f"/mcp?token={text}"):
            assert await status(stage, http("GET", path, **bearer(text))) == 401

    assert text[-43:] not in caplog.text


@pytest.mark.parametrize(
    ("mode", "owner", "refused"),
    [
        (0o100600, 10001, False),
        (0o100640, 10001, True),
        (0o100644, 10001, True),
        pytest.param(0o100440, 0, False, id="of root, for the group, as in Kubernetes"),
        (0o100460, 0, True),
        (0o100444, 0, True),
    ],
)
def test_a_token_file_is_refused_if_others_can_read_it(mode, owner, refused):
    assert is_public(mode, owner, 10001) is refused
    assert is_public(mode, 0, 0) is bool(mode & 0o077)


@pytest.mark.parametrize(
    "header",
    ["x_forwarded_for", "x_forwarded_proto", "forwarded", "via", "x_real_ip", "cf_connecting_ip"],
)
async def test_a_request_through_a_proxy_of_ours_needs_a_token(store, open_gate, header):
    text, _ = store.create("ci")
    async with open_gate() as stage, stage.dial() as line:
        assert (await line.asks(http("GET", "/metrics"))).status == 200
        assert (
            await status(stage, http("GET", "/metrics", **{header: "10.1.2.3"}, **bearer(text)))
            == 200
        )
        refused = await line.asks(http("GET", "/metrics", **{header: "10.1.2.3"}))
        assert refused.status == 401
        assert b"proxy" in refused.body
        assert await line.closed() == b""


async def test_tokens_are_needed_where_users_cannot_be_identified(store, tmp_path):
    rules = AccessRules(host="127.0.0.1")
    text, _ = store.create("ci")
    with open_access(rules) as allowed:
        allowed.access._users = None
        async with open_stage(tmp_path / "state", allowed=allowed) as stage:
            for path in ("/mcp", "/metrics", "/sse"):
                assert await status(stage, http("GET", path)) == 401
            assert await status(stage, http("GET", "/health", **bearer(text))) == 200
            async with dial(stage.port) as line:
                assert (await line.asks(listing(text))).status == 200


async def page(stage, text, path):
    async with stage.dial() as line:
        return (await line.asks(http("GET", path, **bearer(text)))).body.decode()


async def test_a_status_page_shows_what_the_token_may_see(store, open_gate):
    everything, _ = store.create("all")
    little, _ = store.create("little", profile="little")
    some, _ = store.create("some", allow=("counts_echo",))
    async with open_gate() as stage:
        for server in ("counts", "asks"):
            for tool in ("echo", "stats"):
                await status(stage, calling(everything, f"{server}_{tool}", said=1))
        stage.gateway.hub.concerns = lambda: ("the file of 'counts' is lost",)
        pages = {
            text: [await page(stage, text, path) for path in ("/metrics", "/health", "/ready")]
            for text in (everything, little, some)
        }
        own = await page(stage, everything, "/metrics?profile=little")
        refused = await status(stage, http("GET", "/metrics?profile=none", **bearer(everything)))

    counted, healthy, ready = pages[everything]
    assert all(name in counted for name in ('"counts"', '"asks"', '"echo"', '"stats"', "process_"))
    assert json.loads(healthy)["servers"] == 2
    assert "counts" in healthy
    assert "counts" in ready
    for text in pages[little]:
        assert "counts" not in text
    assert '"asks"' in pages[little][0]
    assert json.loads(pages[little][1]) == {"status": "degraded", "servers": 1, "connected": 1}
    assert 'gen_ai_tool_name="echo",server="counts"' in pages[some][0]
    assert 'gen_ai_tool_name="counts_echo",server="counts"' in pages[some][0]
    others = ('"asks"', '"stats"', '"counts_stats"', "multitap_sessions", "process_")
    assert all(name not in pages[some][0] for name in others)
    assert own == pages[little][0]
    assert refused == 400


def test_accounts_do_not_follow_the_line_of_a_token_without_a_name(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(
        "first-token-with-length\nsecond-token-with-length\nann=third-token-with-length\n"
    )
    path.chmod(0o600)
    first, second, named = read_tokens(path)
    path.write_text("second-token-with-length\n")
    [moved] = read_tokens(path)

    assert moved.principal == first.principal  # its name in lists is that of its line
    assert moved.subject == second.subject
    assert len({first.subject, second.subject, named.subject}) == 3
    assert named.subject == "ann"
