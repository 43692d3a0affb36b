"""The ways in which sending a message can fail, on any wire."""


class WireFault(Exception):
    """A message could not be sent, or no valid answer came back."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """False when the server provably never saw the request."""


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
