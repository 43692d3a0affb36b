"""The handshake on raw messages, against what the SDK's own client says."""

import asyncio
import json

import anyio
import msgspec
import pytest
from mcp import ClientSession
from mcp_types import Implementation, SamplingCapability, SamplingContextCapability
from mcp_types import SamplingToolsCapability as ToolsCapability
from msgspec import Raw

from multitap.errors import AnswerInvalid
from multitap.upstream.handshake import BadHandshake, Handshake
from multitap.upstream.questions import Handlers
from multitap.wire.jsonrpc import RpcError

INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {"listChanged": True}, "logging": {}, "experimental": {"x": {}}},
    "serverInfo": {"name": "calc", "version": "1.0", "title": "Calculator"},
    "instructions": "add first",
}
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28", "2099-01-01"],
    "capabilities": {"prompts": {}},
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "calc", "version": "2"}},
}


async def nobody(*_):
    raise AssertionError("nobody asks")


ALL = Handlers(elicit=nobody, sample=nobody, sample_tools=True, sample_context=True, roots=nobody)


class Recorder:
    """A wire for us and a dispatcher for the SDK; both are given the same answer."""

    def __init__(self, answer):
        self.answer = answer
        self.said = []
        self.closed = asyncio.Event()

    async def request(self, request):
        params = json.loads(b"{%b}" % request.params)
        if request.meta:
            params["_meta"] = json.loads(b"{%b}" % request.meta)
        headers = dict(request.headers or {})
        self.said.append((request.method, params, headers, request.cancellable))
        if isinstance(self.answer, Exception):
            raise self.answer
        return Raw(msgspec.json.encode(self.answer))

    async def notify(self, method, params, opts=None, *, headers=None):
        self.said.append((method, params, dict(headers or (opts or {}).get("headers", {}))))

    async def send_raw_request(self, method, params, opts=None):
        cancellable = opts.get("cancel_on_abandon", True)
        self.said.append((method, params, dict(opts.get("headers", {})), cancellable))
        return dict(self.answer)

    async def run(self, *_, task_status=anyio.TASK_STATUS_IGNORED):
        task_status.started()
        await self.closed.wait()


def sdk(recorder, handlers):
    given = {
        "elicitation_callback": handlers.elicit,
        "sampling_callback": handlers.sample,
        "list_roots_callback": handlers.roots,
    }
    info = Handshake(recorder, handlers, timeout=5).introduction("x")
    return ClientSession(
        dispatcher=recorder,
        client_info=Implementation(**info["io.modelcontextprotocol/clientInfo"]),
        sampling_capabilities=SamplingCapability(
            tools=ToolsCapability() if handlers.sample_tools else None,
            context=SamplingContextCapability() if handlers.sample_context else None,
        ),
        **given,
    )


@pytest.mark.parametrize(
    "handlers", [Handlers(), ALL, Handlers(sample=nobody), Handlers(roots=nobody)]
)
@pytest.mark.parametrize(
    ("verb", "answer"), [("initialize", INITIALIZED), ("discover", DISCOVERED)]
)
async def test_we_introduce_ourselves_as_the_sdk_would(verb, answer, handlers):
    ours, theirs = Recorder(answer), Recorder(answer)

    await getattr(Handshake(ours, handlers, timeout=5), verb)()
    async with sdk(theirs, handlers) as session:
        await getattr(session, verb)()

    assert ours.said == theirs.said


async def test_what_a_server_says_about_itself_is_understood():
    handshake = await Handshake(Recorder(INITIALIZED), ALL, timeout=5).initialize()
    stateless = await Handshake(Recorder(DISCOVERED), ALL, timeout=5).discover()

    assert (handshake.protocol_version, handshake.title) == ("2025-11-25", "Calculator 1.0")
    assert handshake.instructions == "add first"
    assert handshake.capabilities.tools.list_changed
    assert handshake.capabilities.logging
    assert handshake.capabilities.resources is None
    assert (stateless.protocol_version, stateless.title) == ("2026-07-28", "calc 2")
    assert stateless.capabilities.prompts is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"serverInfo": None}, "serverInfo", id="nobody"),
        pytest.param({"capabilities": []}, "capabilities", id="no table"),
        pytest.param({"protocolVersion": 3}, "protocolVersion", id="a number"),
        pytest.param({"capabilities": {"tools": 5}}, "tools", id="odd tools"),
    ],
)
async def test_an_incomplete_answer_is_refused_with_the_place(change, words):
    greeter = Handshake(Recorder(INITIALIZED | change), ALL, timeout=5)

    with pytest.raises(BadHandshake, match=words):
        await greeter.initialize()


async def test_a_version_that_nobody_knows_is_refused():
    greeter = Handshake(Recorder(INITIALIZED | {"protocolVersion": "1999-01-01"}), ALL, timeout=5)

    with pytest.raises(AnswerInvalid, match="1999-01-01"):
        await greeter.initialize()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(RpcError(-32601, "Method not found"), id="refused"),
        pytest.param(RpcError(-32022, "x", {"supported": ["1999"]}), id="no common version"),
        pytest.param(DISCOVERED | {"supportedVersions": ["1999"]}, id="another version"),
        pytest.param({"tools": []}, id="no answer to it"),
    ],
)
async def test_a_server_that_does_not_speak_the_stateless_era_is_seen(answer):
    assert await Handshake(Recorder(answer), ALL, timeout=5).discover() is None
