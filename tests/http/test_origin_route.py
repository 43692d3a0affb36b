import asyncio
import socket
from typing import Any

import anyio
import pytest
from yarl import URL

from multitap.http.client.origin_route import in_turns, open_route

NOWHERE = URL("http://several.invalid")


class Resolving:
    """A loop that knows the addresses of a host, whatever its name."""

    def __init__(self, *ports: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ports = ports

    async def getaddrinfo(self, *_: Any, **__: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in self._ports
        ]

    async def create_connection(self, make: Any, host: str, port: int, **options: Any) -> Any:
        if port == SLOW:
            await anyio.sleep_forever()
        return await self._loop.create_connection(make, host, port, **options)


SLOW = 1
REFUSING = 2


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    "others", [(), (REFUSING,), (REFUSING, REFUSING), (SLOW,), (SLOW, REFUSING)]
)
async def test_the_first_address_that_answers_is_taken(listening: int, others: tuple[int, ...]):
    loop: Any = Resolving(*others, listening, SLOW)
    with anyio.fail_after(5):
        transport, _ = await open_route(loop, asyncio.Protocol, NOWHERE)
    made = transport.get_extra_info("socket")
    try:
        assert made.getpeername()[1] == listening
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        transport.abort()


async def test_the_first_refusal_is_told_when_all_refuse():
    loop: Any = Resolving(REFUSING, REFUSING)
    with anyio.fail_after(5), pytest.raises(ConnectionRefusedError):
        await open_route(loop, asyncio.Protocol, NOWHERE)


async def test_a_host_may_have_no_address():
    loop: Any = Resolving()
    with pytest.raises(OSError, match="does not resolve"):
        await open_route(loop, asyncio.Protocol, NOWHERE)


async def test_whoever_gives_up_leaves_no_attempt_behind():
    loop: Any = Resolving(SLOW, SLOW, SLOW)
    with anyio.move_on_after(0.05) as given_up:
        await open_route(loop, asyncio.Protocol, NOWHERE)

    assert given_up.cancelled_caught


def test_the_families_take_turns():
    def address(family: socket.AddressFamily, number: int) -> Any:
        return (family, 1, 6, "", (number,))

    six = [address(socket.AF_INET6, number) for number in range(3)]
    four = [address(socket.AF_INET, number) for number in range(2)]

    assert in_turns([*six, *four]) == [six[0], four[0], six[1], four[1], six[2]]
    assert in_turns([]) == []
