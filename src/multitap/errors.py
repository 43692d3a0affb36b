"""Every exception that multitap raises on purpose.

MultitapError
├── ConfigError          the user's configuration
├── UnknownName          no such server, tool, resource, prompt or kept result
│   └── NotAllowed       it exists, but is hidden from this caller
├── BadArguments         the arguments do not match the tool's schema; nothing was sent
├── Denied               the policy, or a person it asks, refuses the call; nothing was sent
├── HubClosed            the hub was closed before or during the call
├── ModelError           the language model gave no usable answer
├── CoordinatorDown      a cluster's coordinator cannot be reached
└── UpstreamError        one server, named by `.server`
    ├── Unavailable      it is not connected right now; `.failure` says why
    ├── CallTimeout      it did not answer in time (also a TimeoutError)
    ├── Overloaded       too many calls are already waiting for it
    ├── BadAnswer        its answer is not valid
    ├── ToolFailed       its tool failed, in its own words
    └── ServerError      it answered with a protocol error, in its own words

`UntrustedWarning` is a warning: the program goes on without the untrusted parts of a project.
"""

import reprlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multitap.events import Failure

LONGEST_MESSAGE = 4000
"""Characters of an error message, whatever it quotes."""
LONGEST_QUOTE = 100
"""Characters of a foreign name or value within it."""


class MultitapError(Exception):
    """Base class of all errors that Multitap raises."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(shortened(message, LONGEST_MESSAGE))
        self._hint: str | None = None
        self.hint = hint

    @property
    def hint(self) -> str | None:
        """What to do about it; tracebacks show it as a note."""
        return self._hint

    @hint.setter
    def hint(self, text: str | None) -> None:
        notes: list[str] = getattr(self, "__notes__", [])
        if (before := f"hint: {self._hint}") in notes:
            notes.remove(before)
        self._hint = text
        if text:
            self.add_note(f"hint: {text}")


class ConfigError(MultitapError):
    """The configuration is wrong."""


class UnknownName(MultitapError, LookupError):
    """No such server, tool, resource, prompt or kept result."""


class NotAllowed(UnknownName):
    """The name exists, but a filter hides it from this caller."""


class BadArguments(MultitapError, ValueError):
    """The arguments do not match the tool's schema."""

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        """Where in the arguments, as a JSON pointer; empty for the whole."""


class Denied(MultitapError):
    """The policy refuses the call."""


class HubClosed(MultitapError):
    """The hub is closed."""


class ModelError(MultitapError):
    """The language model gave no usable answer."""

    def __init__(self, message: str, *, hint: str | None = None, status: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        """The HTTP status, if the provider answered with an error."""


class CoordinatorDown(MultitapError):
    """A cluster's coordinator cannot be reached; it may or may not have executed the request."""


class UpstreamError(MultitapError):
    """Something went wrong with one server."""

    def __init__(self, server: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{server}: {message}", hint=hint)
        self.server = server


class Unavailable(UpstreamError):
    """The server is not connected right now."""

    def __init__(
        self,
        server: str,
        message: str,
        *,
        hint: str | None = None,
        failure: "Failure | None" = None,
        wants_login: bool = False,
    ) -> None:
        super().__init__(server, message, hint=hint)
        self.failure = failure
        self.wants_login = wants_login
        """Whether it is connected, and refused this request for want of a login."""

    @classmethod
    def because(cls, server: str, failure: "Failure | None", otherwise: str) -> "Unavailable":
        """The error for a server that is down; `otherwise` is the message if it has no failure."""
        message = str(failure) if failure else otherwise
        return cls(server, message, hint=failure.hint if failure else None, failure=failure)


class CallTimeout(UpstreamError, TimeoutError):
    """The server did not answer in time."""


class Overloaded(UpstreamError):
    """Too many calls are already waiting for the server."""


class BadAnswer(UpstreamError):
    """The server's answer is not valid."""


class ToolFailed(UpstreamError):
    """The tool reported a failure."""


class ServerError(UpstreamError):
    """The server answered with a protocol error."""

    def __init__(self, server: str, message: str, *, code: int, data: Any = None) -> None:
        super().__init__(server, message)
        self.words = message
        """The server's own message."""
        self.code = code
        self.data = data


class UntrustedWarning(UserWarning):
    """A project's servers are not used, because nobody has trusted them as they are."""


def quoted(value: object) -> str:
    """A foreign name or value as messages quote it: like `repr`, but never long."""
    if not isinstance(value, str):
        return shortened(reprlib.repr(value), LONGEST_QUOTE)
    return repr(shortened(value, LONGEST_QUOTE))


def shortened(text: str, limit: int) -> str:
    """`text`, cut where it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def shorten_and_count(text: str, limit: int) -> str:
    """`text`, cut in the same way, with the number of characters that a person does not see."""
    more = len(text) - limit
    return text if more <= 0 else f"{text[:limit]}… ({counted(more, 'more character')})"


def join_hints(*hints: str | None) -> str | None:
    """Several hints as one; None if there is none."""
    return "; ".join(filter(None, hints)) or None


def counted(count: int, noun: str) -> str:
    """A number of things: `1 tool`, `2 tools`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def sole(exc: BaseException) -> BaseException:
    """The error inside nested groups, or `exc` itself when they hold several kinds."""
    errors = [sole(inner) for inner in getattr(exc, "exceptions", ())]
    return errors[0] if len({*map(type, errors)}) == 1 else exc


@contextmanager
def ungrouped() -> Generator[None]:
    """Let the caller's own error leave a task group as itself, not wrapped in a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        if (exc := sole(group)) is not group:
            raise exc from exc.__cause__
        raise


class WireFault(Exception):
    """A message could not be sent, or no valid answer came back."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """False when the server provably never saw the request."""


class CannotStart(WireFault):
    """The program could not be started."""

    def __init__(self, message: str, *, hint: str, missing: bool = False) -> None:
        super().__init__(message, sent=False)
        self.hint = hint
        self.missing = missing
        """Whether the program does not exist, so that a retry does not help."""


class WireClosed(WireFault):
    """The whole connection was lost."""


class Flooded(WireClosed):
    """The server sent too much data other than messages; the connection was closed."""


class SessionLost(WireClosed):
    """The server no longer knows our session; a new handshake opens another one."""


class OwnerChanged(WireClosed):
    """Not a failure: another replica runs the server from now on, or its owner starts it again."""


class RequestFailed(WireFault):
    """This one request could not be delivered; the wire still works."""


class OwnerUnreachable(RequestFailed):
    """The replica that should run the server cannot be reached, or does not run it."""

    def __init__(self, message: str, *, sent: bool, hint: str | None = None) -> None:
        super().__init__(message, sent=sent)
        self.hint = hint


class OwnerMoving(OwnerUnreachable):
    """Not a failure: the replica that was asked no longer runs the server, or not yet."""


class AnswerTimeout(WireFault):
    """No answer within the deadline."""


class AnswerInvalid(WireFault):
    """The answer cannot be used: not JSON, wrong shape, too large."""


class AuthRequired(WireFault):
    """The server wants credentials that we do not have."""

    def __init__(
        self, message: str, *, challenge: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, sent=False)
        self.challenge = challenge
        """The `WWW-Authenticate` header, as received."""
        self.hint = hint
        """What the user can do about it."""


class WrongProtocol(WireFault):
    """Something answers at the address, but it does not speak this transport."""
