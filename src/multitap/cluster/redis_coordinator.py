"""A coordinator on Redis or Valkey."""

import asyncio
import importlib.util
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import anyio

from multitap.cluster.coordinator import (
    WINDOW_PARTS,
    Allowance,
    ChannelSubscribers,
    Coordinator,
    Health,
    Lease,
    Message,
    StreamEnds,
    StreamEntry,
)
from multitap.errors import ConfigError, CoordinatorDown
from multitap.installation import extra_hint
from multitap.tasks import Bell, Tasks

SWAP = """
local now = redis.call('GET', KEYS[1])
if ARGV[1] == '1' then
  if now ~= ARGV[2] then return 0 end
elseif now then return 0 end
if ARGV[4] == '' then redis.call('SET', KEYS[1], ARGV[3])
else redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4]) end
return 1
"""

# A lease is kept for a day after it has expired: its absence means that all data were lost. Its
# token follows the clock of Redis, so that it increases even then; `%.0f` writes it without an
# exponent.
ACQUIRE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[4] ~= '' and redis.call('HGET', KEYS[2], 'token') ~= ARGV[4] then return false end
local last = redis.call('HMGET', KEYS[1], 'holder', 'token', 'until')
local holder, token, till = last[1] or '', tonumber(last[2] or 0), tonumber(last[3] or 0)
if holder ~= '' and holder ~= ARGV[1] and till > now then return false end
token = math.max(token + 1, now)
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'token', string.format('%.0f', token),
  'until', string.format('%.0f', now + ARGV[2]), 'note', ARGV[3])
redis.call('PEXPIRE', KEYS[1], 86400000 + ARGV[2])
return string.format('%.0f', token)
"""

# An expired lease is renewed, too, if it was not taken: its token is still the greatest.
RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = {}
for i, key in ipairs(KEYS) do
  local last = redis.call('HMGET', key, 'holder', 'token')
  if last[1] and last[1] ~= '' and last[2] == ARGV[i + 1] then
    redis.call('HSET', key, 'until', string.format('%.0f', now + ARGV[1]))
    redis.call('PEXPIRE', key, 86400000)
    kept[#kept + 1] = i
  end
end
return kept
"""

# The token stays: the next holder needs a greater one.
RELEASE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = redis.call('HMGET', KEYS[1], 'holder', 'token', 'until')
if not last[1] or last[1] == '' or last[2] ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'holder', '')
if tonumber(last[3]) > now then return 1 end
return 0
"""

LOOK = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {}
for i, key in ipairs(KEYS) do
  local last = redis.call('HMGET', key, 'holder', 'token', 'until', 'note')
  if last[2] then
    found[i] = {last[1], last[2], string.format('%.0f', last[3] - now), last[4]}
  else
    found[i] = 0
  end
end
return found
"""

# Announced in the same step: a reader that is notified can read the entry.
APPEND = """
local id = redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[1], '*', 'd', ARGV[2])
if ARGV[3] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
redis.call('PUBLISH', ARGV[4], KEYS[1])
return id
"""

# Only the first amount sets the expiry: a counter in constant use must expire as well.
COUNT = """
local value = redis.call('INCRBY', KEYS[1], ARGV[1])
if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return value
"""

# Time is that of Redis, so that replicas with different clocks share one window.
TAKE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local limit, window, amount = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local parts = tonumber(ARGV[4])
local size = window / parts
local part = math.floor(now / size)
local all, used, oldest = redis.call('HGETALL', KEYS[1]), 0, part
for i = 1, #all, 2 do
  local one = tonumber(all[i])
  if one <= part - parts then redis.call('HDEL', KEYS[1], all[i])
  else
    used = used + all[i + 1]
    if one < oldest then oldest = one end
  end
end
if used + amount > limit then
  return {0, limit - used, string.format('%.6f', (oldest + parts) * size - now)}
end
redis.call('HINCRBY', KEYS[1], string.format('%.0f', part), amount)
redis.call('PEXPIRE', KEYS[1], math.ceil(window * 1000))
return {1, limit - used - amount, '0'}
"""


logger = logging.getLogger(__name__)

_TIMEOUT = 2.0  # seconds for one answer: calls that wait for Redis have deadlines of their own
_CONNECTIONS = 16  # connections; further requests wait for one of these
_PROBE = 1.0  # seconds between two checks that it answers, so that `health` is not old
_PAGE = 500  # keys per step of a scan: Redis serves no other client during a step
_SENTINEL_PORT = 26379
_SENTINEL_OPTIONS = frozenset(
    {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "sentinel_username", "sentinel_password"}
)
_EXAMPLE = "use redis://HOST, rediss://USER:PASSWORD@HOST or redis+sentinel://HOST,HOST/NAME"


class RedisLine:
    """The connection to one Redis: failures become `CoordinatorDown`, and show in `health`."""

    def __init__(self, client: Any, place: str, namespace: str) -> None:
        self.client = client
        self.health = Health(is_up=True)
        self.health_changed = Bell()
        self.is_open = True
        """False once it is closed; a flag, because `redis` may swallow a cancellation."""
        self._place = place
        self._namespace = namespace
        self._answered: float | None = None
        """When it last answered."""
        self._scripts: dict[str, Any] = {}

    def key(self, kind: str, name: str) -> str:
        # the braces keep all keys in one slot of a sharded Redis: scripts need that
        return f"{{{self._namespace}}}:{kind}:{name}"

    async def ask(self, answer: Awaitable[Any]) -> Any:
        """Wait for an answer of Redis.

        Raises:
            CoordinatorDown: Redis refuses, or does not answer.
        """
        before = _cancellations()
        try:
            # the client's own limits are for each read; this one is for the answer
            async with asyncio.timeout(2 * _TIMEOUT):
                result = await answer
        except _lost() as exc:
            await _pass_on_cancellation(before)
            reason = str(exc) or type(exc).__name__
            # a refusal is an answer: Redis is up, and `health` stays as it is
            if _is_refusal(exc):
                raise CoordinatorDown(f"Redis at {self._place} refuses: {reason}") from None
            self._note(Health(is_up=False, reason=reason))
            raise CoordinatorDown(f"Redis at {self._place} does not answer: {reason}") from None
        await _pass_on_cancellation(before)
        self._answered = asyncio.get_running_loop().time()
        self._note(Health(is_up=True))
        return result

    async def run(self, script: str, keys: list[str], *args: Any) -> Any:
        """Run a script atomically."""
        prepared = self._scripts.get(script)
        if prepared is None:
            prepared = self._scripts[script] = self.client.register_script(script)
        return await self.ask(prepared(keys=keys, args=list(args)))

    def _note(self, health: Health) -> None:
        if health.is_up != self.health.is_up:
            self.health = health
            if health.is_up:
                logger.warning("Redis at %s answers again", self._place)
            elif self._answered is not None:  # otherwise start-up fails, with this as its error
                logger.warning("Redis at %s does not answer: %s", self._place, health.reason)
            self.health_changed.ring()

    async def watch(self) -> None:
        """Check once a second that it answers, unless it has just done so."""
        while self.is_open:
            await anyio.sleep(_PROBE)
            is_fresh = self._answered is not None and anyio.current_time() < self._answered + _PROBE
            if self.health.is_up and is_fresh:
                continue
            with suppress(CoordinatorDown):
                await self.ask(self.client.ping())


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _pass_on_cancellation(before: int) -> None:
    """Raise a cancellation that `redis` has swallowed: it is not repeated."""
    if _cancellations() > before:
        # a scope has to recognize its own cancellation
        await anyio.lowlevel.checkpoint_if_cancelled()
        raise asyncio.CancelledError


def _lost() -> tuple[type[Exception], ...]:
    """The exceptions of `redis` for a missing answer."""
    from redis import exceptions  # noqa: PLC0415 - an extra: `open_redis` reports that it is missing

    # the last one: uvloop's, for a connection that was closed before the next write
    return exceptions.RedisError, OSError, TimeoutError, RuntimeError


def _is_refusal(exc: BaseException) -> bool:
    """Whether Redis answered with a refusal: wrong password, missing right, out of memory."""
    from redis import exceptions  # noqa: PLC0415 - see above

    return isinstance(exc, exceptions.ResponseError | exceptions.AuthenticationError) and not (
        isinstance(exc, exceptions.BusyLoadingError | exceptions.ReadOnlyError)
    )


class RedisRecords:
    """See `Records`."""

    def __init__(self, line: RedisLine) -> None:
        self._line = line

    async def read(self, key: str) -> bytes | None:
        value: bytes | None = await self._line.ask(self._line.client.get(self._key(key)))
        return value

    async def write(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        await self._line.ask(self._line.client.set(self._key(key), value, px=_milliseconds(ttl)))

    async def swap(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None
    ) -> bool:
        arguments = (int(expected is not None), expected or b"", value, _milliseconds(ttl) or "")
        return bool(await self._line.run(SWAP, [self._key(key)], *arguments))

    async def touch(self, key: str, ttl: float) -> bool:
        milliseconds = max(1, round(ttl * 1000))
        return bool(await self._line.ask(self._line.client.pexpire(self._key(key), milliseconds)))

    async def delete(self, key: str) -> bool:
        return bool(await self._line.ask(self._line.client.delete(self._key(key))))

    async def scan(self, prefix: str) -> Mapping[str, bytes]:
        start, records, cursor = self._key(""), dict[str, bytes](), 0
        pattern = _literal(self._key(prefix)) + "*"
        while True:
            step = self._line.client.scan(cursor, match=pattern, count=_PAGE)
            cursor, keys = await self._line.ask(step)
            if keys:
                values = await self._line.ask(self._line.client.mget(keys))
                pairs = zip(keys, values, strict=True)
                records |= {key.decode()[len(start) :]: value for key, value in pairs if value}
            if not cursor:
                return records

    def _key(self, key: str) -> str:
        return self._line.key("record", key)


class RedisLeases:
    """See `Leases`."""

    def __init__(self, line: RedisLine) -> None:
        self._line = line

    async def acquire(
        self,
        name: str,
        holder: str,
        *,
        ttl: float,
        note: bytes = b"",
        guard: tuple[str, int] | None = None,
    ) -> int | None:
        other, expected = guard or ("", "")
        keys = [self._key(name), self._key(other)]
        arguments = (holder, _milliseconds(ttl), note, expected)
        token = await self._line.run(ACQUIRE, keys, *arguments)
        return int(token) if token else None

    async def renew(self, held: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        if not held:
            return frozenset()
        names = list(held)
        keys = [self._key(name) for name in names]
        arguments = (_milliseconds(ttl), *held.values())
        numbers: list[int] = await self._line.run(RENEW, keys, *arguments)
        return frozenset(names[number - 1] for number in numbers)

    async def release(self, name: str, token: int) -> bool:
        return bool(await self._line.run(RELEASE, [self._key(name)], token))

    async def look(self, *names: str) -> Mapping[str, Lease]:
        if not names:
            return {}
        rows = await self._line.run(LOOK, [self._key(name) for name in names])
        return {
            name: Lease(row[0].decode(), int(row[1]), int(row[2]) / 1000, row[3] or b"")
            for name, row in zip(names, rows, strict=True)
            if row
        }

    def _key(self, name: str) -> str:
        return self._line.key("lease", name)


class RedisChannels:
    """See `Channels`; one connection carries all subscriptions."""

    def __init__(self, line: RedisLine) -> None:
        self._line = line
        self._subscriptions = ChannelSubscribers()
        self._wanted = Bell()
        self._subscribed: set[str] = set()
        self._asked_for: set[str] = set()
        self._missing: set[str] = set()
        """Channels that somebody relies on before Redis has confirmed them."""
        self._listening = Bell()

    async def publish(self, channel: str, data: bytes) -> None:
        await self._line.ask(self._line.client.publish(self._key(channel), data))

    @asynccontextmanager
    async def subscribe(self, *channels: str) -> AsyncGenerator[AsyncIterator[Message | None]]:
        # before Redis is asked: the first message may come with its confirmation
        with self._subscriptions.listen(*channels) as subscriber:
            self._wanted.ring()
            # a busy Redis confirms it later, and what was missed until then is a gap
            with anyio.move_on_after(_TIMEOUT):
                while not self._subscribed.issuperset(channels):
                    await self._listening.wait()
            self._missing.update(set(channels) - self._subscribed)
            yield subscriber

    def stop(self) -> None:
        """Wake `listen`, which returns once its line is closed."""
        self._wanted.ring()

    async def listen(self) -> None:
        """Deliver messages to the subscribers, and reconnect whenever the connection is lost."""
        while self._line.is_open:
            try:
                async with self._line.client.pubsub() as pubsub:
                    await self._receive(pubsub)
            except _lost():
                # a new connection has no subscriptions: `_agree` asks for all of them again
                self._missing |= self._subscribed
                self._subscribed, self._asked_for = set(), set()
                await anyio.sleep(_PROBE / 4)

    async def _receive(self, pubsub: Any) -> None:
        while self._line.is_open:
            await self._agree(pubsub)
            # checked again: a bell has no memory, and `stop` may have rung during the await
            if not self._subscriptions.channels and self._line.is_open:
                await self._wanted.wait()
                continue
            # short: subscriptions may change while no message arrives
            message = await pubsub.get_message(timeout=0.05)
            if message is not None:
                self._take(message)

    async def _agree(self, pubsub: Any) -> None:
        # subscribers may change during an await: the next turn catches up. Channels that are
        # requested but not confirmed must not be requested twice.
        channels = set(self._subscriptions.channels)
        self._missing &= channels
        if added := channels - self._subscribed - self._asked_for:
            await pubsub.subscribe(*map(self._key, added))
            self._asked_for |= added
        if gone := self._subscribed - channels:
            await pubsub.unsubscribe(*map(self._key, gone))
            self._subscribed -= gone

    def _take(self, message: Mapping[str, Any]) -> None:
        channel = message["channel"].decode()[len(self._key("")) :]
        if message["type"] == "subscribe":
            self._asked_for.discard(channel)
            self._subscribed.add(channel)
            self._listening.ring()
            # only now: messages were missed until this moment
            if channel in self._missing:
                self._missing.discard(channel)
                self._subscriptions.note_gap(channel)
        elif message["type"] == "message":
            self._subscriptions.feed(Message(channel, message["data"]))

    def _key(self, channel: str) -> str:
        return self._line.key("channel", channel)


class RedisStreams:
    """See `Streams`. Waiting takes no connection: each append is announced on one channel."""

    GROWN = "streams"

    def __init__(self, line: RedisLine) -> None:
        self._line = line
        self._grown: dict[str, Bell] = {}
        self._waiting: dict[str, int] = {}

    async def append(self, stream: str, data: bytes, *, most: int, ttl: float | None = None) -> str:
        channel = self._line.key("channel", self.GROWN)
        arguments = (most, data, _milliseconds(ttl) or "", channel)
        entry_id: bytes = await self._line.run(APPEND, [self._key(stream)], *arguments)
        return entry_id.decode()

    async def entries(
        self, stream: str, after: str = "0-0", *, limit: int = 100, wait: float = 0.0
    ) -> list[StreamEntry]:
        key = self._key(stream)
        if wait <= 0:
            return await self._after(key, after, limit)
        # shared by all readers of this stream, hence the count: the last one removes it
        bell = self._grown.setdefault(key, Bell())
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            new_entries: list[StreamEntry] = []
            # asyncio's own: a scope of anyio may take a cancellation of its task for its own
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    # taken before the read: an entry may be appended during it
                    rung = bell.coming()
                    while not (new_entries := await self._after(key, after, limit)):
                        await rung.wait()
                        rung = bell.coming()
            return new_entries
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._grown[key]

    async def ends(self, stream: str) -> StreamEnds | None:
        key = self._key(stream)
        first = await self._line.ask(self._line.client.xrange(key, count=1))
        last = await self._line.ask(self._line.client.xrevrange(key, count=1))
        if not first or not last:
            return None
        return StreamEnds(first[0][0].decode(), last[0][0].decode())

    async def trim(self, stream: str, before: str | None = None) -> None:
        key = self._key(stream)
        if before is None:
            await self._line.ask(self._line.client.delete(key))
        else:
            trimmed = self._line.client.xtrim(key, minid=before, approximate=False)
            await self._line.ask(trimmed)

    async def listen(self, channels: RedisChannels) -> None:
        """Wake the readers of streams that have grown."""
        async with channels.subscribe(self.GROWN) as messages:
            self._wake_all()  # readers did not wait for us
            async for message in messages:
                if message is None:
                    self._wake_all()
                    continue
                # anybody on this Redis can publish here, and not only text
                key = message.data.decode(errors="replace")
                if (waited_for := self._grown.get(key)) is not None:
                    waited_for.ring()

    def _wake_all(self) -> None:
        """Have all readers look again: any stream may have grown unnoticed."""
        for bell in tuple(self._grown.values()):
            bell.ring()

    async def _after(self, key: str, after: str, limit: int) -> list[StreamEntry]:
        rows = await self._line.ask(self._line.client.xrange(key, min=f"({after}", count=limit))
        return [StreamEntry(entry_id.decode(), fields[b"d"]) for entry_id, fields in rows]

    def _key(self, stream: str) -> str:
        return self._line.key("stream", stream)


class RedisLimits:
    """See `SharedLimits`."""

    def __init__(self, line: RedisLine) -> None:
        self._line = line

    async def count(self, key: str, amount: int = 1, *, ttl: float) -> int:
        key = self._line.key("count", key)
        return int(await self._line.run(COUNT, [key], amount, _milliseconds(ttl)))

    async def take(self, key: str, *, limit: int, window: float, amount: int = 1) -> Allowance:
        key = self._line.key("window", key)
        arguments = (limit, window, amount, WINDOW_PARTS)
        allowed, left, wait = await self._line.run(TAKE, [key], *arguments)
        return Allowance(bool(allowed), int(left), float(wait))


class RedisCoordinator(Coordinator):
    """See `Coordinator`; made by `open_redis`."""

    def __init__(self, line: RedisLine, channels: RedisChannels, streams: RedisStreams) -> None:
        super().__init__(
            line,
            records=RedisRecords(line),
            leases=RedisLeases(line),
            channels=channels,
            streams=streams,
            limits=RedisLimits(line),
        )
        self._redis = line

    async def time(self) -> float:
        seconds, micros = await self._redis.ask(self._redis.client.time())
        return float(seconds) + float(micros) / 1e6


@asynccontextmanager
async def open_redis(url: str, *, namespace: str = "multitap") -> AsyncGenerator[RedisCoordinator]:
    """A coordinator that connects to Redis, and reconnects when it was down.

    Args:
        url: `redis://`, `rediss://` with TLS, `unix://`, or `redis+sentinel://` with the name of
            the service as its path; each with user and password if needed.
        namespace: The prefix of all keys: several clusters may share one Redis.

    Raises:
        ConfigError: The address cannot be used, or `redis` is not installed.
    """
    if importlib.util.find_spec("redis") is None:
        raise ConfigError(
            "a cluster needs the Python package `redis`, which is not installed",
            hint=extra_hint("redis"),
        )
    client, place = _client(url)
    line = RedisLine(client, place, namespace)
    try:
        channels, streams = RedisChannels(line), RedisStreams(line)
        async with Tasks() as tasks:
            tasks.start_soon(line.watch)
            tasks.start_soon(channels.listen)
            tasks.start_soon(streams.listen, channels)
            try:
                yield RedisCoordinator(line, channels, streams)
            finally:
                # before the tasks are cancelled: if `redis` swallows that, this ends them
                line.is_open = False
                channels.stop()
    finally:
        # we are usually cancelled here, and sockets left open would outlive the loop
        with anyio.CancelScope(shield=True):
            await client.aclose(close_connection_pool=True)
            # it does not close those to the sentinels
            watched = getattr(client.connection_pool, "sentinel_manager", None)
            for sentinel in watched.sentinels if watched is not None else ():
                await sentinel.aclose(close_connection_pool=True)


def _client(url: str) -> tuple[Any, str]:
    """A client for an address, and the address as shown in messages."""
    import redis.asyncio as redis  # noqa: PLC0415 - see above
    from redis import backoff  # noqa: PLC0415 - see above
    from redis.asyncio import retry  # noqa: PLC0415 - see above

    scheme, netloc, path, *_ = parts = urlsplit(url)
    options: dict[str, Any] = {
        "socket_timeout": _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT / 2,
        "protocol": 2,  # the older protocol, which every version supports
        # no retries: the first attempt may have been executed
        "retry": retry.Retry(backoff.NoBackoff(), 0),
    }
    login, _, hosts = netloc.rpartition("@")
    place = hosts or path
    try:
        if scheme in {"redis+sentinel", "rediss+sentinel"}:
            return _behind_sentinels(parts, login, hosts, options), place
        if scheme not in {"redis", "rediss", "unix"}:
            raise ValueError(f"{scheme or 'nothing'!r} is not a scheme for Redis")  # noqa: TRY301 - one way out
        # There is no other host to try, and a machine without time for us is late with everything:
        # only `RedisLine.ask` says when it is too late.
        options |= dict.fromkeys(("socket_timeout", "socket_connect_timeout"), 2 * _TIMEOUT)
        # blocking: the usual pool fails at once when all of its connections are in use
        pools: Any = redis.BlockingConnectionPool  # its keywords have no types
        pool = pools.from_url(url, max_connections=_CONNECTIONS, timeout=2 * _TIMEOUT, **options)
        return redis.Redis(connection_pool=pool), place
    except ValueError as exc:
        raise ConfigError(f"the cluster's address cannot be used: {exc}", hint=_EXAMPLE) from None


def _behind_sentinels(parts: SplitResult, login: str, hosts: str, options: dict[str, Any]) -> Any:
    from redis.asyncio import sentinel  # noqa: PLC0415 - see above

    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("it does not name the service that the sentinels watch")
    query = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    if unknown := query.keys() - _SENTINEL_OPTIONS:
        raise ValueError(f"{min(unknown)!r} is not an option of it")
    of_sentinels = dict(options)
    for key in ("username", "password"):
        if setting := query.pop(f"sentinel_{key}", None):
            of_sentinels[key] = setting
    # both sides of a deployment have TLS, or neither has
    tls = {"ssl": True, **query} if parts.scheme.startswith("rediss") else {}
    user, _, password = login.partition(":")
    if password:
        options["password"] = unquote(password)
        options["username"] = unquote(user) or None
    sentinels = [_host_and_port(host) for host in hosts.split(",")]
    make: Any = sentinel.Sentinel  # it has no types
    watched = make(sentinels, sentinel_kwargs={**of_sentinels, **tls}, **options, **tls)
    # this pool cannot wait for a free connection, so it may open more
    return watched.master_for(service, db=int(database or 0), max_connections=4 * _CONNECTIONS)


def _host_and_port(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"{text!r} is not a host")
    return parts.hostname, parts.port or _SENTINEL_PORT


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))


def _literal(text: str) -> str:
    """A glob pattern that matches exactly this text."""
    return "".join(f"\\{char}" if char in "*?[]\\^" else char for char in text)
