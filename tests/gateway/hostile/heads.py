"""Clients that never get as far as a request."""

from itertools import count, repeat

import anyio

from tests.gateway.hostile.raw import http


async def drip_their_heads(stage, healthy):
    async def drip():
        async with stage.dial() as line:
            await line.send(b"POST /mcp HTTP/1.1\r\n")
            drops = (b"x-%d: y\r\n" % number for number in count())
            assert (await line.drips(drops, lambda: healthy.goes_on(1))).status == 408
            assert await line.closed() == b""

    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(drip)


async def say_nothing(stage, healthy):
    async def wait():
        async with stage.dial() as line:
            assert await line.closed() == b""

    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(wait)


async def send_empty_lines_for_ever(stage, healthy):
    async with stage.dial() as line:
        assert (await line.asks(http("GET", "/health"))).status == 200
        response = await line.drips(repeat(b"\r\n"), lambda: healthy.goes_on(1))
        assert response.status == 408


async def hang_up_in_the_middle_of_a_request(stage, healthy):
    whole = http(body=b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    for length in range(1, len(whole), 7):
        async with stage.dial() as line:
            await line.send(whole[:length])


async def send_a_header_without_end(stage, healthy):
    async with stage.dial() as line:
        await line.send(b"POST /mcp HTTP/1.1\r\nx: ")
        try:
            for _ in range(64):
                await line.send(b"y" * 65536)
        except ConnectionError:
            return
        assert (await line.response()).status == 431


async def send_a_hundred_thousand_headers(stage, healthy):
    async with stage.dial() as line:
        lines = b"".join(b"x-%d: y\r\n" % number for number in range(100_000))
        response = await line.asks(b"POST /mcp HTTP/1.1\r\n" + lines + b"\r\n")

        assert response.status == 431


async def send_a_giant_address(stage, healthy):
    async with stage.dial() as line:
        assert (await line.asks(http("GET", "/" + "a" * 200_000))).status == 431


async def speak_no_http(stage, healthy):
    hello = bytes.fromhex("16030100a5010000a10303") + bytes(160)
    for words in (
        hello,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x00" * 1000,
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
    ):
        async with stage.dial() as line:
            assert (await line.asks(words)).status == 400
            assert await line.closed() == b""


async def use_strange_methods(stage, healthy):
    for method in ("OPTIONS", "TRACE", "PUT", "PATCH", "HEAD"):
        async with stage.dial() as line:
            assert (await line.asks(http(method))).status == 405
            assert (await line.asks(http("GET", "/health"))).status == 200
    async with stage.dial() as line:
        assert (await line.asks(http("CONNECT", "elsewhere:80"))).status == 404
    async with stage.dial() as line:
        upgrade = {"connection": "upgrade", "upgrade": "h2c"}
        assert (await line.asks(http("GET", "/health", **upgrade))).status == 200
        assert (await line.asks(http("GET", "/health"))).status == 200


async def smuggle_requests(stage, healthy):
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ping), ping)
    length = b"content-length: %d\r\n" % len(ping)
    start = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for head, body in (
        (length + b"content-length: 3\r\n", ping),
        (length + b"transfer-encoding: chunked\r\n", chunk),
        (b"transfer-encoding: chunked\r\n" + length, chunk),
        (b"transfer-encoding: chunked, identity\r\n", chunk),
        (b"transfer-encoding: xchunked\r\n", chunk),
        (b"content-length: +%d\r\n" % len(ping), ping),
        (b"content-length: %d, %d\r\n" % (len(ping), len(ping)), ping),
        (b"content-length: 99999999999999999999999\r\n", ping),
        (b"content-length : %d\r\n" % len(ping), ping),
        (b"host: elsewhere\r\n" + length, ping),
        (b"content-type: text/plain\r\n" + length, ping),
        (b"mcp-session-id: a\r\nmcp-session-id: b\r\n" + length, ping),
    ):
        async with stage.dial() as line:
            await line.send(start + head + b"\r\n" + body + http("GET", "/health"))
            assert (await line.head())[0] == 400, head
    async with stage.dial() as line:
        trailer = b"host: elsewhere\r\nmcp-session-id: stolen\r\n\r\n"
        await line.send(start + b"transfer-encoding: chunked\r\n\r\n" + chunk[:-2] + trailer)
        assert b"initialize first" in (await line.response()).body


HOSTILE = (
    drip_their_heads,
    say_nothing,
    send_empty_lines_for_ever,
    hang_up_in_the_middle_of_a_request,
    send_a_header_without_end,
    send_a_hundred_thousand_headers,
    send_a_giant_address,
    speak_no_http,
    use_strange_methods,
    smuggle_requests,
)
