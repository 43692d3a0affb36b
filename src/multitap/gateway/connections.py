"""People connect their own accounts at servers: the links they open, and the calls that wait.

A link is for one person and one server. It carries neither a name nor a credential, and opening it
proves nothing: the page behind it asks who opens it, and goes on only for the person it is for.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from multitap.errors import Unavailable
from multitap.events import FailureCode
from multitap.gateway.client import ClientRequest, able
from multitap.hub.hub import Hub
from multitap.hub.personal_servers import is_connect_only
from multitap.principal import NO_PERSON, Person
from multitap.trust.single_use import Seal, as_text, bind, from_text
from multitap.upstream.questions import OnBehalfOf
from multitap.wire.jsonrpc import RpcError, notification
from multitap.wire.wire import OnProgress

LINK_LIFE = 600.0
"""Seconds for which a link can be opened."""
QUIET = 40.0
"""Seconds that a call waits for a person whose client is not told of progress: many clients give up
after a minute."""
LONGEST = 600.0
"""Seconds that a call waits for a person whose client is told of progress."""
_TICK = 5.0  # seconds between two reports of progress
_ELICIT = "elicitation/create"
_PURPOSE = "connect an account"


class _Ticket(msgspec.Struct, frozen=True, array_like=True):
    issuer: str
    subject: str
    server: str
    nonce: str


class _Opened(msgspec.Struct):
    action: str = ""


class ConnectLinks:
    """Makes the links, and reads what they are for; replicas that share `key` read each other's.

    Args:
        key: Seals links.
    """

    def __init__(self, key: bytes) -> None:
        self.base: str | None = None
        """The URL of the gateway as people see it; None if there are no pages."""
        self.page_key = bind("pages", key)
        """Seals the sessions of browsers."""
        self._key = key
        self._seal: Seal | None = None

    def new(self, person: Person, server: str) -> str | None:
        """A link for one person to connect an account at one server; None without pages."""
        if self.base is None:
            return None
        ticket = _Ticket(*person, server, secrets.token_urlsafe(9))
        sealed = self._sealing.seal(msgspec.json.encode(ticket), _PURPOSE)
        return f"{self.base}/accounts/connect?for={as_text(sealed)}"

    def read(self, text: str) -> tuple[Person, str] | None:
        """For whom and which server a link is; None if it is not ours, or too old."""
        opened = self._sealing.unseal(from_text(text), _PURPOSE)
        if opened is None or time.time() - opened.time > LINK_LIFE:
            return None
        ticket = msgspec.json.decode(opened.data, type=_Ticket)
        return Person(ticket.issuer, ticket.subject), ticket.server

    @property
    def _sealing(self) -> Seal:
        if self._seal is None:  # imports cryptography, which most gateways do not need
            self._seal = Seal(self._key)
        return self._seal


class NeedsAccount(Unavailable):
    """A person has to connect their account first; the message has the link."""

    def __init__(self, server: str, link: str | None, *, reason: str = "") -> None:
        where = f"open {link}" if link else "ask the person who runs this gateway"
        why = f" ({reason})" if reason else ""
        super().__init__(
            server,
            f"it needs your own account{why}: {where} and connect it, then call again",
            hint="the link is for you only, and works for ten minutes" if link else None,
        )


class AccountConnections:
    """Asks the person behind a client to connect an account, and waits until they have."""

    def __init__(self, hub: Hub, links: ConnectLinks) -> None:
        self._hub = hub
        self.links = links
        self._asked: set[tuple[Person, str]] = set()

    def concerns(self, request: ClientRequest, exc: Unavailable) -> bool:
        """Whether a request failed because its person has no account, or one that has ended."""
        failure, people = exc.failure, self._hub.people
        person = request.client.audience.person
        wants_login = exc.wants_login or (failure is not None and failure.code is FailureCode.AUTH)
        return wants_login and people is not None and people.link(person, exc.server) is not None

    def is_connected(self, person: Person, server: str, since: float = 0.0) -> bool:
        """Whether a person's account at a server works, with a login that is not older."""
        people = self._hub.people
        link = None if people is None else people.link(person, server)
        if people is None or link is None or link.session is None or is_connect_only(link.offers):
            return False
        return not since or people.of(person).logged_in_at(server) >= since

    async def connect(
        self,
        request: ClientRequest,
        server: str,
        asker: OnBehalfOf,
        on_progress: OnProgress | None,
        *,
        reason: str = "",
    ) -> None:
        """Have the person behind a request connect their account.

        Args:
            request: The request that needs it.
            server: The server.
            asker: Asks the client, in the way of its era.
            on_progress: Keeps the request alive meanwhile; None if its client wants no progress.
            reason: Why the account that they had no longer works.

        Raises:
            NeedsAccount: They have not, or cannot be asked; the message has the link.
        """
        person = request.client.audience.person
        if person is None or person == NO_PERSON:
            raise NeedsAccount(server, None, reason="a program has no accounts")
        link = self.links.new(person, server)
        if link is None or not able(asker.capabilities, _ELICIT, {"mode": "url"}):
            raise NeedsAccount(server, link, reason=reason)
        key = (person, server)
        # a session whose login was refused in the middle is still there
        since = time.time() if self.is_connected(person, server) else 0.0
        with anyio.move_on_after(QUIET if on_progress is None else LONGEST):
            async with _progressing(server, on_progress):
                # one question for all of their calls; the others wait for the same outcome
                if key not in self._asked:
                    self._asked.add(key)
                    try:
                        await self._ask(request, server, link, asker, reason, since)
                    finally:
                        self._asked.discard(key)
                else:
                    await self._wait_connected(person, server, since)
            return
        raise NeedsAccount(server, link, reason=reason)

    async def _ask(  # noqa: PLR0917 - called once
        self,
        request: ClientRequest,
        server: str,
        link: str,
        asker: OnBehalfOf,
        reason: str,
        since: float,
    ) -> None:
        elicitation = secrets.token_urlsafe(12)
        message = f"The server {server!r} needs your own account. Open the page to connect it."
        params: dict[str, Any] = {
            "mode": "url",
            "message": f"{message} ({reason})" if reason else message,
            "url": link,
            "elicitationId": elicitation,
        }
        try:
            answer = msgspec.json.decode(await asker.ask(_ELICIT, params), type=_Opened)
        except (RpcError, msgspec.MsgspecError) as exc:
            raise NeedsAccount(server, link, reason=str(exc)) from None
        if answer.action != "accept":
            raise NeedsAccount(server, link, reason="you declined")
        # accepted means that they open the page, not that they are done
        await self._wait_connected(request.client.audience.person or NO_PERSON, server, since)
        if request.client.shook_hands:
            done = notification(
                "notifications/elicitation/complete", {"elicitationId": elicitation}
            )
            request.client.outlet.send(done)

    async def _wait_connected(self, person: Person, server: str, since: float) -> None:
        while not self.is_connected(person, server, since):
            await self._hub.changed.wait()


@asynccontextmanager
async def _progressing(server: str, on_progress: OnProgress | None) -> AsyncGenerator[None]:
    """Report progress while entered, so that the client does not give up."""
    if on_progress is None:
        yield
        return
    clock = asyncio.get_running_loop().time

    async def tick() -> None:
        began = clock()
        while True:
            # far below what a server reports: progress must not decrease
            on_progress((clock() - began) / 1e6, None, f"waiting for you to connect {server}")
            await anyio.sleep(_TICK)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        yield
        tasks.cancel_scope.cancel()
