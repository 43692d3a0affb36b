"""Strangers at the door between two replicas."""

import socket

import anyio

from multitap.cluster import peers
from multitap.cluster.peers import open_peers
from tests.waiting import PATIENCE


async def test_more_strangers_than_are_waited_for_are_turned_away_unheard(monkeypatch):
    monkeypatch.setattr(peers, "_STRANGERS", 2)
    async with open_peers(b"k" * 32, "a", lambda _: None, listen="127.0.0.1:0") as found:
        host, _, port = found.address.rpartition(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(2)]
        with anyio.fail_after(PATIENCE):
            stream = await anyio.connect_tcp(host, int(port))
            async with stream:
                heard = b""
                try:
                    while piece := await stream.receive():
                        heard += piece
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    pass
        for one in silent:
            one.close()

    assert heard == b""
