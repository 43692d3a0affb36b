"""Strangers that send without end, in a process of their own: they get all the time they want.

Run as a program: `python floods.py PORT KIND CONNECTIONS`. Says so once it has begun.
"""

import itertools
import os
import selectors
import socket
import sys

ENOUGH = 1 << 20
"""Bytes that are made at once."""
HOST = b"host: 127.0.0.1\r\n"
POST = b"POST /mcp HTTP/1.1\r\n" + HOST + b"content-type: application/json\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
HELD = b"content-length: 33000000\r\n\r\n"


def again(piece):
    return piece * (ENOUGH // len(piece) + 1)


def fields():
    return b"".join(b"x-%d: y\r\n" % number for number in range(ENOUGH // 12))


KINDS = {
    "tiny requests": (b"", lambda: again(b"GET / HTTP/1.1\r\n\r\n")),
    "requests without a token": (b"", lambda: again(b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n")),
    "posts": (
        b"",
        lambda: again(POST + b'content-length: 40\r\n\r\n{"jsonrpc":"2.0","id":1,"method":"ping"}'),
    ),
    "half requests": (POST + b"x-half: ", None),
    "half bodies": (POST + b"content-length: 31000000\r\n\r\n" + b" " * 30_000_000, None),
    "header fields": (POST, fields),
    "one endless header": (POST + b"x: ", lambda: again(b"y")),
    "trailer fields": (CHUNKED + b"1\r\n \r\n0\r\n", fields),
    "one endless trailer": (CHUNKED + b"0\r\nx: ", lambda: again(b"y")),
    "tiny chunks": (CHUNKED, lambda: again(b"1\r\n \r\n")),
    "chunk extensions": (CHUNKED, lambda: again(b"1;" + b"x" * 4000 + b"\r\n \r\n")),
    "empty lines": (b"", lambda: again(b"\r\n")),
    "noise": (b"", lambda: again(bytes(range(256)))),
    "connections": (None, None),
}
"""What is said first on each connection, and what is then repeated for ever."""


class Stranger:
    """One connection, opened again whenever it ends."""

    def __init__(self, selector, port, first, more):
        self._selector = selector
        self._port = port
        self._first = first
        self._more = more
        self._open()

    def _open(self):
        self._plug = socket.socket()
        self._plug.setblocking(False)
        self._plug.connect_ex(("127.0.0.1", self._port))
        self._left = itertools.chain([self._first or b""], itertools.repeat(self._more))
        self._unsent = memoryview(b"")
        wanted = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.register(self._plug, wanted, self)

    def stir(self, events):
        try:
            if events & selectors.EVENT_READ and not self._plug.recv(1 << 16):
                self._again()
            elif events & selectors.EVENT_WRITE:
                self._say()
        except BlockingIOError:
            return
        except OSError:
            self._again()

    def _say(self):
        if self._first is None:
            self._again()
            return
        if not self._unsent:
            self._unsent = memoryview(next(self._left))
        if not self._unsent:
            self._selector.modify(self._plug, selectors.EVENT_READ, self)
            return
        self._unsent = self._unsent[self._plug.send(self._unsent[:65536]) :]

    def _again(self):
        self._selector.unregister(self._plug)
        self._plug.close()
        self._open()


def main(port, kind, connections):
    first, more = KINDS[kind]
    said = more() if more else b""
    selector = selectors.DefaultSelector()
    for _ in range(connections):
        Stranger(selector, port, first, said)
    print("begun", flush=True)
    test = os.getppid()
    while os.getppid() == test:  # it may have been killed
        for key, events in selector.select():
            key.data.stir(events)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
