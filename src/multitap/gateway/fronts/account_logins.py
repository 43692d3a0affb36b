"""Logins of people at the authorization servers of servers, between two pages.

A login belongs to the person who began it, and to the process where it began. In a cluster, the
browser may come back to another replica, which passes that on.
"""

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import anyio
import msgspec

from multitap.errors import MultitapError, WireFault
from multitap.gateway.gateway import Gateway
from multitap.oauth.errors import LoginFailed
from multitap.principal import Person

if TYPE_CHECKING:
    from multitap.cluster.bus import ReplicaMessage

MOST_LOGINS = 256
"""Logins in progress; beyond that, the oldest is given up."""
NOT_BEGUN = "This is not the answer to a login that was begun here."
_RETURN = "account-login-return"
_PATIENCE = 60.0  # seconds for another replica to finish one


class BegunLogin(msgspec.Struct, frozen=True):
    """Where a browser goes, and what it has to bring back."""

    page: str
    state: str
    replica: str
    """The process that has it; empty outside of a cluster."""


class LoginOutcome(msgspec.Struct, frozen=True, array_like=True):
    """How a login ended."""

    server: str
    reason: str | None
    """None if it succeeded, else why it did not."""
    is_foreign: bool = False
    """Whether somebody else came back than went there."""


class _Flow:
    """One login at an authorization server, between two pages."""

    def __init__(self, person: Person, server: str) -> None:
        loop = asyncio.get_running_loop()
        self.person = person
        self.server = server
        self.page: asyncio.Future[str] = loop.create_future()
        self.redirected: asyncio.Future[str] = loop.create_future()
        self.outcome: asyncio.Future[str | None] = loop.create_future()
        """None if it succeeded, else why it did not."""

    async def has_page(self) -> bool:
        """Wait until the authorization server's page is known; False if there is none."""
        waiting: set[asyncio.Future[Any]] = {self.page, self.outcome}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return self.page.done() and not self.page.cancelled()

    async def send(self, _: str, page: str) -> str:
        """Hand the address of the page to the browser, and wait for its return."""
        if not self.page.done():
            self.page.set_result(page)
        return await self.redirected


class _Return(msgspec.Struct, frozen=True, array_like=True):
    state: str
    address: str
    issuer: str
    """Of the person whose browser it is."""
    subject: str


class AccountLogins:
    """All logins in progress."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._flows: dict[str, _Flow] = {}
        if gateway.bus is not None:
            gateway.bus.on(_RETURN, self._on_return)

    async def begin(self, person: Person, server: str, redirect: str) -> BegunLogin | str:
        """Begin a login; why that is not possible, if it is not."""
        # one at a time: nobody can crowd out those of others
        for state, other in tuple(self._flows.items()):
            if (other.person, other.server) == (person, server):
                self._give_up(state)
        if len(self._flows) >= MOST_LOGINS:
            self._give_up(next(iter(self._flows)))
        flow = _Flow(person, server)
        self._gateway.tasks.start_apart(self._run, flow, redirect)
        if not await flow.has_page():
            return flow.outcome.result() or ""
        page, bus = flow.page.result(), self._gateway.bus
        state = parse_qs(urlsplit(page).query).get("state", [""])[0]
        self._flows[state] = flow
        return BegunLogin(page, state, "" if bus is None else bus.name)

    async def finish(
        self, state: str, address: str, person: Person, replica: str | None
    ) -> LoginOutcome:
        """Go on with a login whose browser came back.

        Args:
            replica: The process that has it, as far as the browser says.
        """
        back, bus = _Return(state, address, *person), self._gateway.bus
        if bus is None or not replica or replica == bus.name or state in self._flows:
            return await self._go_on(back)
        try:
            data = msgspec.msgpack.encode(back)
            reply = await bus.ask(replica, _RETURN, data, within=_PATIENCE)
            return msgspec.msgpack.decode(reply, type=LoginOutcome)
        except MultitapError:
            return LoginOutcome("", "the replica that began this login has stopped")

    async def _go_on(self, back: _Return) -> LoginOutcome:
        flow = self._flows.get(back.state)
        if flow is None:
            return LoginOutcome("", NOT_BEGUN)
        if flow.person != (back.issuer, back.subject):
            # the person who began it learns nothing, and the one who came back connects nothing
            self._give_up(back.state)
            return LoginOutcome(flow.server, "", is_foreign=True)
        del self._flows[back.state]
        # its time may be up: then the outcome says so
        if not flow.redirected.done():
            flow.redirected.set_result(back.address)
        # shielded: a browser that hangs up ends its request, not the login
        return LoginOutcome(flow.server, await asyncio.shield(flow.outcome))

    async def _on_return(self, note: "ReplicaMessage") -> bytes:
        back = msgspec.msgpack.decode(note.data, type=_Return)
        return msgspec.msgpack.encode(await self._go_on(back))

    def _give_up(self, state: str) -> None:
        flow = self._flows.pop(state)
        if not flow.redirected.done():
            flow.redirected.cancel()

    async def _run(self, flow: _Flow, redirect: str) -> None:
        from multitap.oauth.account import LOGIN_TIMEOUT  # noqa: PLC0415 - many never log in

        people = self._gateway.hub.people
        reason: str | None = "the login was not completed"
        try:
            if people is not None:
                with anyio.fail_after(LOGIN_TIMEOUT):
                    await people.of(flow.person).log_in(flow.server, flow.send, redirect)
                reason = None
        except TimeoutError:
            reason = "nobody logged in within ten minutes"
        except (MultitapError, LoginFailed, WireFault) as exc:
            reason = str(exc)
        except asyncio.CancelledError:
            if not flow.redirected.cancelled():  # or it was only given up
                raise
        finally:
            if not flow.outcome.done():
                flow.outcome.set_result(reason)
            flow.page.cancel()
