"""Sends a client's user to log in to a server during a call."""

import asyncio
import secrets
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio
import msgspec

from multitap.errors import Unavailable, WireFault
from multitap.events import FailureCode
from multitap.gateway.client import Client, ClientRequest, able
from multitap.http.addresses import is_loopback
from multitap.hub.hub import Hub
from multitap.oauth.errors import LoginFailed
from multitap.tasks import Tasks
from multitap.upstream.questions import OnBehalfOf
from multitap.wire.jsonrpc import UNPARSABLE, RpcError, notification

if TYPE_CHECKING:
    from multitap.oauth.account import Account

_ELICIT = "elicitation/create"


class _UrlElicited(msgspec.Struct):
    action: str = ""


class ClientLogins:
    """Asks the client whose call needs a login, and no other client.

    A login is shared by all users of the gateway. So only the owner's own clients are asked: those
    on this machine, if no tokens distinguish people.
    """

    def __init__(self, hub: Hub, tasks: Tasks) -> None:
        self._hub = hub
        self._tasks = tasks
        self._under_way: set[str] = set()
        # a refusal is remembered as long as the client is connected
        self._declined: WeakKeyDictionary[Client, set[str]] = WeakKeyDictionary()

    def may_ask(self, request: ClientRequest, exc: Unavailable) -> bool:
        """Whether a call that failed may succeed after its client's person has logged in."""
        failure, server = exc.failure, exc.server
        return (
            failure is not None
            and failure.code is FailureCode.AUTH
            and server not in self._under_way
            and server not in self._declined.get(request.client, ())
            and _is_owner(request.client)
            and able(request.capabilities, _ELICIT, {"mode": "url"})
            and self._account(server) is not None
        )

    async def log_in(self, server: str, client: Client | None, asker: OnBehalfOf) -> None:
        """Have the person behind a client, or before a screen, log in.

        Args:
            client: The client to notify when it is done, if any.

        Raises:
            Unavailable: They did not.
        """
        account = self._account(server)
        if account is None:
            raise Unavailable(server, "it has no login, or has not asked for one yet")
        if server in self._under_way:
            raise Unavailable(server, "another login to it is in progress")
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        # no await since the check: two calls cannot send their people to the same page
        self._under_way.add(server)
        self._tasks.start_apart(self._run, account, client, asker, done)
        # shielded: a person who is on the page may finish, though their client lost patience
        if (reason := await asyncio.shield(done)) is not None:
            hint = f"run `multitap login {server}`"
            raise Unavailable(server, f"cannot log in: {reason}", hint=hint)

    async def _run(
        self,
        account: "Account",
        client: Client | None,
        asker: OnBehalfOf,
        done: "asyncio.Future[str | None]",
    ) -> None:
        from multitap.oauth.account import LOGIN_TIMEOUT  # noqa: PLC0415 - many never log in

        reason: str | None = "the gateway is closing"
        try:
            with anyio.fail_after(LOGIN_TIMEOUT):
                await self._visit(account, client, asker)
            reason = None
        except TimeoutError:
            reason = "the login was not completed in time"
        except (LoginFailed, WireFault, RpcError, *UNPARSABLE) as exc:
            reason = account.config.redact(str(exc))
            if client is not None:
                self._declined.setdefault(client, set()).add(account.name)
        finally:
            self._under_way.discard(account.name)
            # the waiting call may have been cancelled, and its future with it
            if not done.done():
                done.set_result(reason)

    async def _visit(self, account: "Account", client: Client | None, asker: OnBehalfOf) -> None:
        from multitap.oauth.callback import open_callback  # noqa: PLC0415 - many never log in

        settings, name = account.settings, account.name
        question = secrets.token_urlsafe(12)
        async with open_callback(
            name, port=settings.callback_port, redirect=settings.redirect_uri
        ) as callback:

            async def send(_: str, page: str) -> str:
                params = {
                    "mode": "url",
                    "message": f"The server {name!r} wants you to log in.",
                    "url": page,
                    "elicitationId": question,
                }
                answer = msgspec.json.decode(await asker.ask(_ELICIT, params), type=_UrlElicited)
                if answer.action != "accept":
                    raise LoginFailed("the login was declined")
                return await callback.wait(page)

            await account.log_in(send, callback.address, account.challenge)
        if client is not None and client.shook_hands:
            params = {"elicitationId": question}
            client.outlet.send(notification("notifications/elicitation/complete", params))

    def _account(self, server: str) -> "Account | None":
        logins = self._hub.logins
        account = None if logins is None else logins.find(server)
        # nobody is asked in place of a program, whose secret a page would not protect
        return None if account is None or account.is_machine else account


def _is_owner(client: Client) -> bool:
    """Whether a client is on this machine, and cannot be anybody but its owner."""
    # on pipes there is no holder: the user who started us is the owner
    return not client.principal.key and (not client.holder or is_loopback(client.holder))
