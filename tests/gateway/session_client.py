"""A client of one session made of nothing but sockets, which can lose its streams."""

import json
from contextlib import asynccontextmanager

from tests.gateway.hostile.raw import dial, hello, http, in_session


class Stream:
    """One response that is an event stream, read event by event."""

    def __init__(self, line):
        self.line = line
        self.last_id = None
        self.retry = None
        self._rest = b""
        self._events = []

    async def event(self):
        """The next event with a message; None: the stream ended."""
        while not self._events:
            if not (part := await self.line.chunk()):
                return None
            self._rest += part
            *events, self._rest = self._rest.split(b"\r\n\r\n")
            self._events += events
        fields = dict(
            one.split(b": ", 1) for one in self._events.pop(0).split(b"\r\n") if b": " in one
        )
        self.last_id = fields.get(b"id", self.last_id)
        self.retry = fields.get(b"retry", self.retry)
        if not fields.get(b"data"):
            return await self.event()
        return json.loads(fields[b"data"])

    async def rest(self):
        """All that follows, until it ends."""
        told = []
        while (one := await self.event()) is not None:
            told.append(one)
        return told


class SessionClient:
    """One session; `port` may be changed between requests, to reach another replica."""

    def __init__(self, port, headers=None, version="2025-11-25"):
        self.port = port
        self.headers = {**(headers or {}), "mcp_protocol_version": version}
        self.version = version
        self.session = None

    async def shake_hands(self, **capabilities):
        async with dial(self.port) as line:
            said = hello(protocolVersion=self.version, capabilities=capabilities)
            response = await line.asks(http(body=said, **self.headers))
            self.session = response.headers["mcp-session-id"]
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    async def post(self, said):
        async with dial(self.port) as line:
            return await line.asks(in_session(self.session, said, **self.headers))

    async def delete(self):
        async with dial(self.port) as line:
            return await line.asks(http("DELETE", **self._head()))

    @asynccontextmanager
    async def streams(self, said):
        """A request that is answered with a stream."""
        async with dial(self.port) as line:
            await line.send(in_session(self.session, said, **self.headers))
            _, headers = await line.head()
            assert headers["content-type"] == "text/event-stream"
            yield Stream(line)

    @asynccontextmanager
    async def listens(self, last_id=None):
        async with dial(self.port) as line:
            await line.send(self._get(last_id))
            status, _ = await line.head()
            assert status == 200
            yield Stream(line)

    async def refusal(self, last_id):
        """The response to an attempt to listen that is refused."""
        async with dial(self.port) as line:
            return await line.asks(self._get(last_id))

    def _head(self):
        return {**self.headers, "mcp_session_id": self.session}

    def _get(self, last_id):
        last_id = last_id.decode() if isinstance(last_id, bytes) else last_id
        more = {} if last_id is None else {"last_event_id": last_id}
        return http("GET", content_type=None, content_length=None, **self._head(), **more)
