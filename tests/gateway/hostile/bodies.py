"""Clients whose bodies are too slow, too long, or none."""

import json
from itertools import repeat

import anyio

from tests.gateway.hostile.raw import (
    MODERN,
    OLD,
    call,
    hello,
    http,
    in_session,
    message,
    shake_hands,
    stateless,
)

DEEP = 200_000


async def drip_their_bodies(stage, healthy):
    async def drip():
        async with stage.dial() as line:
            await line.send(http(content_length=1_000_000))
            response = await line.drips(repeat(b" "), lambda: healthy.goes_on(1))
            assert response.status == 408

    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(drip)


async def promise_a_body_and_send_none(stage, healthy):
    async with stage.dial() as first, stage.dial() as second:
        await first.send(http(content_length=10))
        await second.send(http(content_length=10, expect="100-continue"))
        assert (await first.response()).status == 408
        assert (await second.head())[0] == 100
        assert (await second.response()).status == 408


async def declare_a_giant_body(stage, healthy):
    async with stage.dial() as line:
        assert (await line.asks(http(content_length=10**15))).status == 413


async def send_a_giant_body_in_chunks(stage, healthy):
    async with stage.dial() as line:
        await line.send(http(content_length=None, transfer_encoding="chunked"))
        for _ in range(40):
            await line.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert (await line.response()).status == 413


async def send_frames_around_nothing(stage, healthy):
    """Little in each chunk, much around it, and trailers without end."""
    for filling in (b"1;" + b"x" * 4000 + b"\r\n \r\n", b"0\r\n" + b"x: " + b"y" * 65536):
        async with stage.dial() as line:
            await line.send(http(content_length=None, transfer_encoding="chunked"))
            try:
                for _ in range(1000):
                    await line.send(filling)
            except ConnectionError:
                continue
            assert (await line.response()).status in {400, 413}


async def send_broken_chunks(stage, healthy):
    for chunk in (b"zz\r\n", b"-1\r\n", b"5\r\nabc\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n"):
        async with stage.dial() as line:
            await line.send(http(content_length=None, transfer_encoding="chunked") + chunk)
            assert (await line.response()).status == 400


async def mean_something_else(stage, healthy):
    """Say that the body is of another kind, or want the answer in one."""
    ping = json.dumps(message(1, "ping")).encode()
    async with stage.dial() as line:
        session = await shake_hands(line)
        for kind in (None, "", "text/plain", "application/jsonp", "multipart/form-data"):
            assert (await line.asks(in_session(session, ping, content_type=kind))).status == 415
        for accept in ("text/html", "", "*/*;q=0", "application/xml"):
            response = await line.asks(in_session(session, ping, accept=accept))
            assert response.message["result"] == {}, accept
        listening = http("GET", accept="text/html", mcp_session_id=session)
        assert (await line.asks(listening)).status == 406


async def send_no_json(stage, healthy):
    async with stage.dial() as line:
        session = await shake_hands(line)
        for body in (
            b"",
            b"hello",
            b"null",
            b"[]",
            b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
            b'{"jsonrpc":"2.0","id":1,"method":"ping"',
            b'{"jsonrpc":"2.0","id":1,"method":"ping"}{}',
            b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}',
            b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\xc3("}}',
            b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}',
            b'{"jsonrpc":"2.0","id":1,"method":5}',
            b'{"jsonrpc":"2.0","id":1,"method":"' + b"\\ud800" + b'"}',
            b"[" * DEEP,
            b'{"a":' * DEEP,
            b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * DEEP + b"]" * DEEP + b"}",
            b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
            b'{"id":1,"method":"ping"}',
            b'{"jsonrpc":"2.0","id":1}',
        ):
            response = await line.asks(in_session(session, body))
            assert response.status in {202, 400}, body[:80]
        for number in (b"1e999999", b"-" + b"9" * 10_000, b"0." + b"1" * 10_000):
            said = (
                json.dumps(call(1, "echo", said=0))
                .encode()
                .replace(b'"said": 0', b'"said":' + number)
            )
            assert (await line.asks(in_session(session, said))).status == 200, number[:20]


async def use_ids_of_every_wrong_kind(stage, healthy):
    async with stage.dial() as line:
        session = await shake_hands(line)
        for wrong in (None, True, [1], {"a": 1}, 1.5, [], {}):
            response = await line.asks(in_session(session, message(wrong, "ping")))
            assert response.status == 400, wrong
            assert (await line.asks(stateless(wrong, "tools/list"))).status == 400
        long = "i" * 100_000
        assert (await line.asks(in_session(session, message(long, "ping")))).message["id"] == long


async def send_wrong_parameters(stage, healthy):
    """Every type for every method; none may cause an internal error."""
    methods = (
        "tools/call", "tools/list", "prompts/get", "resources/read", "resources/subscribe",
        "resources/unsubscribe", "completion/complete", "logging/setLevel", "initialize", "nope",
        "subscriptions/listen",
    )  # fmt: skip
    wrong = (
        None, 5, "x", [], {}, {"name": 5}, {"uri": []}, {"_meta": 5}, {"level": {}},
        {"name": "counts_echo", "arguments": 5}, {"name": "counts_echo", "arguments": None},
        {"ref": {"type": "ref/prompt", "name": []}}, {"ref": {"uri": {}}}, {"ref": 5},
        {"_meta": {"progressToken": {"a": []}}}, {"capabilities": 5}, {"clientInfo": []},
        {"notifications": {"resourceSubscriptions": 5}}, {"requestState": 5, "name": "x"},
    )  # fmt: skip
    async with stage.dial() as line:
        session = await shake_hands(line)
        for method in methods:
            for params in wrong:
                said = {**message(1, method), "params": params}
                told = (await line.asks(in_session(session, said))).message
                assert told.get("error", {}).get("code") != -32603, (method, params, told)
                if isinstance(params, dict) and method != "subscriptions/listen":
                    named = {"mcp_name": "x"} if "name" not in params else {}
                    mixed = {key: one for key, one in params.items() if key != "_meta"}
                    asked = stateless(1, method, headers=named, **mixed)
                    told = (await line.asks(asked)).message
                    assert told.get("error", {}).get("code") != -32603, (method, params, told)


async def introduce_themselves_at_length(stage, healthy):
    async with stage.dial() as line:
        for long in (
            {"clientInfo": {"name": "n" * 200_000}},
            {"capabilities": {"c": "c" * 200_000}},
        ):
            response = await line.asks(http(body=hello(**long)))
            assert response.message["error"]["code"] == -32602
            gone = in_session(response.headers["mcp-session-id"], message(1, "ping"))
            assert (await line.asks(gone)).status == 404


async def break_lines(stage, healthy):
    """Put what looks like a message of its own into arguments, between line breaks."""
    forged = json.dumps({"jsonrpc": "2.0", "method": "notifications/forged"})
    for brk in ("\n", "\r", "\r\n"):
        arguments = f'{{"said":{brk}{forged}{brk}}}'
        body = json.dumps(call(1, "echo")).replace("{}", arguments).encode()
        meta = body.replace(
            b'"arguments"', b'"_meta":{"x":' + arguments.encode() + b'},"arguments"'
        )
        async with stage.dial() as line:
            session = await shake_hands(line)
            for said in (body, meta):
                response = await line.asks(in_session(session, said))
                assert json.loads(response.text)["method"] == "notifications/forged"


async def contradict_their_headers(stage, healthy):
    async with stage.dial() as line:
        for wrong in (
            {"mcp_method": "tools/list"},
            {"mcp_name": "counts_hang"},
            {"mcp_method": None},
            {"mcp_name": None},
            {"mcp_protocol_version": "1999-01-01"},
            {"mcp_protocol_version": "2099-01-01"},
            {"mcp_protocol_version": f"{MODERN}, {OLD}"},
            {"mcp_method": "tools/call\r\nmcp-method: tools/list"},
            {"mcp_name": "counts_echo\r\nmcp-name: counts_hang"},
        ):
            asked = stateless(1, "tools/call", name="counts_echo", arguments={}, headers=wrong)
            response = await line.asks(asked)
            assert response.status == 400, (wrong, response)
            assert "error" in response.message


HOSTILE = (
    drip_their_bodies,
    promise_a_body_and_send_none,
    declare_a_giant_body,
    send_a_giant_body_in_chunks,
    send_frames_around_nothing,
    send_broken_chunks,
    mean_something_else,
    send_no_json,
    use_ids_of_every_wrong_kind,
    send_wrong_parameters,
    introduce_themselves_at_length,
    break_lines,
    contradict_their_headers,
)
