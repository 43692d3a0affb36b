"""Joins the background gateway of this user, and starts it if there is none.

Every client's `multitap serve` imports this, so it imports little: no event loop, no hub.
"""

import hashlib
import os
import re
import select
import socket
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from multitap.control import places
from multitap.errors import ConfigError, MultitapError
from multitap.files import USER_FOLDERS, try_lock
from multitap.version import VERSION, own_program

PATIENCE = 30.0
"""Seconds for a gateway to start, or to answer."""
LONGEST = 4 * 1024 * 1024
"""Bytes of a request or a reply."""
MOVED, STOPPED = b"!moved", b"!stopped"
"""What a gateway says instead of a message: join again at once, or with the next message."""
_LOOK = 0.02  # seconds between two looks at a lock
_AGAIN = 0.2  # seconds before a gateway that had no time is asked again
_QUOTED = 8  # last lines of a log
_PREFIX = "background-"

WHOLE = (
    *("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_DIR", "SSL_CERT_FILE", "PYTHON_KEYRING_BACKEND", "MULTITAP_SANDBOX"),
)
"""Variables that apply to a whole process: clients share one only if they agree on all of them."""
_INHERITED = frozenset(
    {
        *WHOLE,
        *("PATH", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "LD_LIBRARY_PATH"),
    }
)
_PREFIXES = ("LC_", "XDG_", "PYTHON", "COVERAGE_")
EARLY = ("MULTITAP_", "EXCELMANUS_")
"""Prefixes of variables that say which files are read, and so are sent first."""


class Needs(msgspec.Struct, frozen=True):
    """The variables that a gateway needs from a client, because its servers use them."""

    names: tuple[str, ...]
    prefixes: tuple[str, ...] = ()

    def pick(self, env: Mapping[str, str]) -> dict[str, str]:
        """Their values."""
        names = frozenset(self.names)
        return {
            name: value
            for name, value in env.items()
            if name in names or (self.prefixes and name.startswith(self.prefixes))
        }


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client says first, in one line of JSON."""

    purpose: Literal["serve", "look", "greet", "retire"] = "serve"
    """`serve`: be an MCP client; `look`: have a view, to use its control socket; `greet`: learn
    which gateway it is; `retire`: have it hand its clients over to a new one."""
    proof: str = ""
    version: str = VERSION
    folder: str = ""
    """Where the client works."""
    files: tuple[str, ...] = ()
    dialect: str | None = None
    profile: str | None = None
    variables: Mapping[str, str] | None = None
    early: Mapping[str, str] = {}


class JoinReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the gateway answers, in one line of JSON; messages follow if it has a view."""

    version: str
    pid: int
    needs: Needs | None = None
    """The request has to be repeated with these variables."""
    control: str = ""
    """The control socket of the view."""
    notes: tuple[str, ...] = ()
    """What a person should know about the configuration."""
    is_alone: bool = False
    """The configuration asks for a gateway of its own, for example on HTTP."""
    host: str = ""
    """The address of the gateway over HTTP that it is a part of."""
    is_busy: bool = False
    """Whether the client should try again."""
    error: str = ""
    hint: str | None = None
    is_configuration: bool = False
    """Whether the configuration is what is wrong."""


class Joined(msgspec.Struct, frozen=True):
    """A connection to the background gateway."""

    connection: socket.socket
    reply: JoinReply
    rest: bytes = b""
    """What was received after the reply."""


class BackgroundPlace(msgspec.Struct, frozen=True):
    """Where the background gateway of this user listens and writes."""

    socket: Path
    lock: Path
    log: Path
    """What it writes to its standard error."""


def background_place() -> BackgroundPlace:
    """The place for a process with the variables of this one."""
    values = "\0".join(f"{name}={os.environ[name]}" for name in WHOLE if name in os.environ)
    digest = hashlib.sha256(values.encode(errors="surrogateescape")).hexdigest()[:8]
    return _place(f"{_PREFIX}{digest}")


def _place(name: str) -> BackgroundPlace:
    state = USER_FOLDERS.user_state_path
    files = state / "gateways"
    return BackgroundPlace(
        places.folder(state) / f"{name}.sock", files / f"{name}.lock", files / f"{name}.log"
    )


def join(
    request: JoinRequest, *, starts: bool, patience: float = PATIENCE, force: bool = False
) -> Joined | None:
    """Join the background gateway; None if there is none, and none may be started.

    One of an older version is asked to leave its clients to a new one.

    Args:
        force: Whether one of any version has to leave.

    Raises:
        MultitapError: It cannot be started, or does not answer; the message says why.
    """
    place, until = background_place(), time.monotonic() + patience
    joined = None if force else _knock(place, request, until, takes_older=not starts)
    if joined is not None and not (starts and is_newer(VERSION, joined.reply.version)):
        return joined
    _close(joined)
    if not starts:
        return None
    with _turn(place, until):
        # another client may have started or replaced it while we waited
        joined = _knock(place, request, until)
        if joined is not None and (force or is_newer(VERSION, joined.reply.version)):
            _close(joined)
            _close(_knock(place, JoinRequest(purpose="retire"), until))
            joined = None
        if joined is None:
            _start(place, until)
            joined = _knock(place, request, until)
    if joined is None:
        raise _failed("the background gateway ended as soon as it had started", place)
    return joined


def running_gateways() -> dict[BackgroundPlace, JoinReply]:
    """The background gateways of this user that run now.

    Usually one: a client with other proxies or certificates, for example, has another.

    Raises:
        MultitapError: One does not answer.
    """
    until = time.monotonic() + PATIENCE
    running: dict[BackgroundPlace, JoinReply] = {}
    for path in sorted(background_place().socket.parent.glob(f"{_PREFIX}*.sock")):
        place = _place(path.stem)
        joined = _knock(place, JoinRequest(purpose="greet"), until)
        _close(joined)
        if joined is not None:
            running[place] = joined.reply
    return running


def replace_gateway(place: BackgroundPlace) -> JoinReply | None:
    """Have a running gateway hand over to a new one, which is returned.

    None if its clients start the new one, because only they have the variables for it.

    Raises:
        MultitapError: The new one cannot be started.
    """
    if place != background_place():
        _close(_knock(place, JoinRequest(purpose="retire"), time.monotonic() + PATIENCE))
        return None
    joined = join(JoinRequest(purpose="greet"), starts=True, force=True)
    _close(joined)
    return None if joined is None else joined.reply


@contextmanager
def free_place() -> Generator[BackgroundPlace]:
    """While entered, the place is free for a gateway of this process: nobody else takes it.

    Raises:
        MultitapError: The gateway that runs there does not answer.
    """
    place, until = background_place(), time.monotonic() + PATIENCE
    with _turn(place, until):
        _close(_knock(place, JoinRequest(purpose="retire"), until))
        yield place


def _close(joined: Joined | None) -> None:
    if joined is not None:
        joined.connection.close()


_STAGES = {"dev": 0, "a": 1, "b": 2, "rc": 3, "": 4, "post": 5}
_VERSION = re.compile(r"(\d+(?:\.\d+)*)(?:\.?(dev|a|b|rc|post)(\d*))?")


def is_newer(version: str, other: str) -> bool:
    """Whether a version comes after another one."""
    return _rank(version) > _rank(other)


def _rank(version: str) -> tuple[tuple[int, ...], int, int]:
    match = _VERSION.match(version)
    if match is None:
        return (), 0, 0
    release, stage, number = match.groups()
    return tuple(map(int, release.split("."))), _STAGES[stage or ""], int(number or 0)


def _knock(
    place: BackgroundPlace, request: JoinRequest, until: float, *, takes_older: bool = False
) -> Joined | None:
    """Ask the gateway for a view, until it has time; None if none answers at this place."""
    while True:
        joined = _knock_once(place, request, until, takes_older=takes_older)
        if joined is None or not joined.reply.is_busy:
            return joined
        _close(joined)
        if time.monotonic() >= until:
            raise _silent()
        time.sleep(_AGAIN)


def _knock_once(
    place: BackgroundPlace, request: JoinRequest, until: float, *, takes_older: bool
) -> Joined | None:
    path = place.socket
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # 0 would mean not to wait at all, and a negative time is an error
        connection.settimeout(max(until - time.monotonic(), 0.1))
        connection.connect(str(path))
        early = {name: value for name, value in os.environ.items() if name.startswith(EARLY)}
        proven = msgspec.structs.replace(request, proof=places.prove(path).decode(), early=early)
        reply, rest = _ask(connection, proven)
        # one that is replaced anyway need not start servers first
        if reply.needs is not None and (takes_older or not is_newer(VERSION, reply.version)):
            values = reply.needs.pick(os.environ)
            reply, rest = _ask(connection, msgspec.structs.replace(proven, variables=values))
    except TimeoutError:
        connection.close()
        raise _silent() from None
    except OSError:  # also if it ends just now
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    if reply.error and not reply.is_busy:
        connection.close()
        kind = ConfigError if reply.is_configuration else MultitapError
        raise kind(reply.error, hint=reply.hint)
    connection.settimeout(None)
    return Joined(connection, reply, rest)


def _silent() -> MultitapError:
    return MultitapError(
        "the background gateway does not answer",
        hint="`multitap stop` ends it; `multitap serve --alone` does without it",
    )


def _ask(connection: socket.socket, request: JoinRequest) -> tuple[JoinReply, bytes]:
    # a gateway without time for us says so before it reads anything
    with suppress(BrokenPipeError):
        connection.sendall(msgspec.json.encode(request) + b"\n")
    received = bytearray()
    while b"\n" not in received:
        chunk = connection.recv(65536)
        if not chunk or len(received) > LONGEST:
            raise ConnectionResetError
        received += chunk
    line, _, rest = bytes(received).partition(b"\n")
    try:
        return msgspec.json.decode(line, type=JoinReply), rest
    except msgspec.DecodeError as exc:
        raise MultitapError(
            f"cannot understand the background gateway: {exc}", hint="`multitap stop` ends it"
        ) from None


@contextmanager
def _turn(place: BackgroundPlace, until: float) -> Generator[None]:
    """While entered, no other client of this user starts or replaces the gateway."""
    try:
        places.make_folder(place.lock.parent)
        handle = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise MultitapError(
            f"the background gateway cannot be started: {exc}",
            hint="`multitap serve --alone` does without it",
        ) from None
    try:
        # polled: a wait for a lock has no time limit
        while not try_lock(handle):
            if time.monotonic() >= until:
                raise MultitapError(
                    "another client has been starting the background gateway for too long",
                    hint=f"{place.log} may say why; `multitap serve --alone` does without it",
                )
            time.sleep(_LOOK)
        yield
    finally:
        os.close(handle)


def _start(place: BackgroundPlace, until: float) -> None:
    """Start a gateway in a session of its own, and wait until it listens.

    Raises:
        MultitapError: It ended, or did not get that far in time.
    """
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    ready, theirs = os.pipe()
    child = os.fork()
    if not child:
        _become_gateway(place, log, theirs)
    os.close(log)
    os.close(theirs)
    try:
        # it ends at once: its own child becomes the gateway
        os.waitpid(child, 0)
        left = max(until - time.monotonic(), 0.0)
        if not select.select([ready], [], [], left)[0]:
            raise _failed("the background gateway takes too long to start", place)
        if not os.read(ready, 1):
            raise _failed("the background gateway did not start", place)
    finally:
        os.close(ready)


def _become_gateway(place: BackgroundPlace, log: int, ready: int) -> NoReturn:
    """In a child process: start the gateway as nobody's child, with nothing of the client's."""
    try:
        # not in the client's session or tree: ending these must not end the others' gateway
        os.setsid()
        if os.fork():
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for theirs, fd in ((null, 0), (null, 1), (log, 2)):
            os.dup2(theirs, fd)
        # a client that waits for the end of its pipes must not wait for the gateway
        os.dup2(ready, 3)
        os.set_inheritable(3, True)
        os.closerange(4, os.sysconf("SC_OPEN_MAX") if sys.platform != "linux" else 65536)
        # no server and no file is in there, so that no relative path means anything
        os.chdir(place.log.parent)
        command = (*own_program(), "serve", "--background", "3")
        os.execve(command[0], command, _own_variables(os.environ))  # noqa: S606 - our own program
    finally:
        os._exit(127)


def _own_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of the gateway itself: no client's secrets."""
    return {
        name: value
        for name, value in env.items()
        if name in _INHERITED or name.startswith(_PREFIXES)
    }


def _failed(message: str, place: BackgroundPlace) -> MultitapError:
    try:
        lines = place.log.read_text(errors="replace").strip().splitlines()[-_QUOTED:]
    except OSError:
        lines = []
    quoted = "".join(f"\n  {line}" for line in lines)
    return MultitapError(
        f"{message}; it wrote:{quoted}" if quoted else message,
        hint=f"see {place.log}; `multitap serve --alone` does without it",
    )
