"""The user of a connection, as the kernel reports it."""

import asyncio
import os
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from multitap.http.server.peer import Peer, PeerUsers
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
OTHER = 65534
"""`nobody`, on any system."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
CONNECT = """
import os, socket, sys
os.setgroups([]); os.setgid({user}); os.setuid({user})
client = socket.socket()
client.connect(("127.0.0.1", int(sys.argv[1])))
print(flush=True)
sys.stdin.read()
"""

TRIES = 20
"""Attempts to get a port, which other programs may take."""


@pytest.fixture(params=["kernel", "tables"])
def users(request):
    """Asks the kernel, or reads its tables as where it may not be asked."""
    with PeerUsers() as users:
        if request.param == "tables":
            users._netlink.close()
            users._netlink = None
        yield users


@contextmanager
def connected(host="127.0.0.1", *, to=None, family=None):
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=kind) as listener,
        socket.socket(family or kind) as client,
    ):
        client.connect((to or host, listener.getsockname()[1]))
        server, _ = listener.accept()
        with server:
            yield client, server


def is_own(users, server):
    return users.is_own(server.getsockname()[:2], server.getpeername()[:2])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.4.5", "::1"])
def test_our_own_connection_is_known(users, host):
    with connected(host) as (_, server):
        assert is_own(users, server) is True


def test_a_dual_stack_client_is_known(users):
    with connected(to="::ffff:127.0.0.1", family=socket.AF_INET6) as (_, server):
        assert is_own(users, server) is True


def test_a_client_of_a_dual_stack_server_is_known(users):
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])),
    ):
        server, address = listener.accept()
        with server:
            assert address[0] == "::ffff:127.0.0.1"
            assert is_own(users, server) is True


def test_a_client_that_only_sends_no_more_is_known(users):
    with connected() as (client, server):
        client.shutdown(socket.SHUT_WR)
        assert server.recv(1) == b""

        assert is_own(users, server) is True


@pytest.mark.parametrize("abruptly", [False, True])
def test_a_client_that_left_is_unknown_and_not_root(users, abruptly):
    with connected() as (client, server):
        ends = server.getsockname()[:2], server.getpeername()[:2]
        client.send(b"do something bad")
        if abruptly:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

        assert users.is_own(*ends) is None


def test_who_listens_on_the_port_of_a_client_that_left_is_not_the_client(users):
    for _ in range(TRIES):
        with connected() as (client, server), ExitStack() as stack:
            ends = server.getsockname()[:2], server.getpeername()[:2]
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            try:
                stack.enter_context(socket.create_server(ends[1]))
            except OSError:  # another program took the port
                continue
            assert users.is_own(*ends) is None
            return
    pytest.fail("the port was never free")


@pytest.mark.parametrize("theirs", [("10.9.8.7", 1234), ("127.0.0.1", 1), ("::1", 1)])
def test_a_connection_that_is_none_of_this_machine_is_unknown(users, theirs):
    assert users.is_own(("127.0.0.1", 80), theirs) is None


def test_users_can_be_identified_where_clients_connect(users):
    assert users.can_tell("127.0.0.1")
    assert users.can_tell("::1")
    assert not users.can_tell("10.9.8.7")


@contextmanager
def another_user(port):
    """A connection of another user."""
    program = CONNECT.format(user=OTHER)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        assert client.stdout.readline() == b"\n"
        yield
        client.stdin.close()


@as_root
def test_a_connection_of_somebody_else_is_not_ours(users):
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        another_user(listener.getsockname()[1]),
    ):
        server, _ = listener.accept()
        with server:
            assert is_own(users, server) is False


async def peer_of(server):
    """The peer of a transport."""
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
        asyncio.Protocol, server
    )
    peer = Peer()
    peer.open(transport, "127.0.0.1")
    return peer, transport


async def test_it_is_found_out_once_for_a_connection():
    with PeerUsers() as users, connected() as (client, server):
        peer, transport = await peer_of(server.dup())
        assert peer.is_own(users) is True
        client.close()

        assert peer.is_own(users) is True
        peer.close()
        transport.abort()


async def test_a_connection_that_was_reset_has_no_user_even_if_another_has_its_port():
    for _ in range(TRIES):
        if await _has_no_user_if_another_has_its_port():
            return
    pytest.fail("the port was never free")


async def _has_no_user_if_another_has_its_port():
    with PeerUsers() as users, connected() as (client, server), socket.socket() as another:
        port, ours = client.getsockname()[1], server.getsockname()
        peer, transport = await peer_of(server.dup())
        transport.pause_reading()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        try:
            another.bind(("127.0.0.1", port))
        except OSError:  # another program took the port
            return False
        else:
            another.connect(ours)
            assert peer.is_own(users) is None
            return True
        finally:
            transport.abort()


async def test_a_peer_that_is_gone_has_no_user():
    with PeerUsers() as users, connected() as (_, server):
        peer, transport = await peer_of(server.dup())
        peer.close()

        assert peer.is_own(users) is None
        transport.abort()
        await until(transport.is_closing)
