"""`multitap login` and `logout`: grant and revoke a person's access to a server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import click
from anyio import from_thread, to_thread
from yarl import URL

from multitap.cli.browser import open_page
from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration, require
from multitap.cli.options import CommonOptions, config_options, project_options
from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit, TypedLines, advise, complain, is_somebody_there, note
from multitap.config import HttpServer, OAuth
from multitap.config.problems import did_you_mean
from multitap.errors import ConfigError, Unavailable, UnknownName, WireFault
from multitap.http.client.route import show_url
from multitap.oauth.account import LOGIN_TIMEOUT, PORT, REDIRECT, Account
from multitap.oauth.callback import open_callback
from multitap.oauth.discovery import wanted_login
from multitap.oauth.errors import LoginFailed
from multitap.oauth.flow import LoginFlow
from multitap.oauth.storage import Login, LoginStorage
from multitap.tasks import Tasks
from multitap.trust.projects import expand_trusted
from multitap.trust.stored_logins import StoredLogin, TokenStore


@click.command()
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@click.option(
    "--no-browser",
    "browser",
    flag_value=False,
    default=True,
    help="Print the address to open, and ask for the one where the browser ends",
)
@click.option("--scope", metavar="SCOPES", help="Ask for these rights, separated by spaces")
@project_options
def login(options: CommonOptions, name: str, *, browser: bool, scope: str | None) -> int:
    """Log in to a server

    Opens a browser, and waits until you have agreed there. The login is stored, renewed when it
    expires, and used by running gateways at once.
    """
    config = _server(options, name)
    oauth = config.oauth or OAuth()
    if config.oauth is False:
        raise ConfigError(f"`oauth` is `false` for {name!r}", hint="remove it to log in")
    if oauth.grant != "authorization_code":
        if oauth.issuer is not None:
            raise ConfigError(
                f"{name!r} logs in by itself (`oauth.grant` is `{oauth.grant}`)",
                hint=f"`multitap doctor {name}` says whether that works",
            )
        login_ = run_async(lambda: _log_in_alone(name, config))
        note(f"{name!r} logs in by itself at {login_.issuer}{_rights(login_)}")
        return Exit.DONE
    log_in_person(name, config, browser=browser, scope=scope)
    note(f"stored in {_place(name, config)}; running gateways connect by themselves")
    return Exit.DONE


def log_in_person(
    name: str, config: HttpServer, *, browser: bool = True, scope: str | None = None
) -> None:
    """Send the user to the login page of a server, and keep the login.

    Raises:
        Unavailable: The server has no such login, or nobody logged in.
    """
    login_ = run_async(lambda: _log_in(name, config, browser=browser, scope=scope))
    note(f"logged in to {name!r} at {login_.issuer}{_rights(login_)}")


@click.command()
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@click.option("--revoke", is_flag=True, help="Also revoke the tokens at the authorization server")
@config_options
def logout(options: CommonOptions, name: str, *, revoke: bool) -> int:
    """Forget the login to a server"""
    config = _server(options, name)
    store = TokenStore()
    stored_as = config.login_name(name)
    login = store.find(stored_as, config.url)
    if login is None and not store.remove(stored_as, config.url):
        note(f"nobody is logged in to {name!r}")
        return Exit.DONE
    failed = run_async(lambda: _revoke(config, login)) if revoke and login else None
    # forgotten even if that failed: it must not be usable from here
    store.remove(stored_as, config.url)
    if failed is not None:
        complain(f"the tokens could not be revoked: {failed}")
        advise(f"revoke Multitap's access on the website of {login.issuer if login else name}")
    note(f"logged out of {name!r}")
    return Exit.FAILED if failed else Exit.DONE


def _server(options: CommonOptions, name: str) -> HttpServer:
    loaded = load_configuration(options)
    try:
        require(loaded, name)
    except UnknownName as exc:
        typed = name if "://" in name else f"{name} URL"
        near = did_you_mean(name, loaded.merged.servers)
        adds = f"`multitap add {typed}` adds one, and logs in"
        raise UnknownName(str(exc), hint=" ".join(filter(None, (near, adds)))) from None
    config = loaded.settings.servers[name]
    if not isinstance(config, HttpServer):
        raise ConfigError(
            f"{name!r} is a program, and has no login", hint="set its credentials in `env`"
        )
    expanded = expand_trusted(loaded, name, config)
    if not isinstance(expanded, HttpServer):
        raise TypeError("a remote server stays one")
    return expanded


async def _log_in(
    name: str, config: HttpServer, *, browser: bool, scope: str | None
) -> StoredLogin:
    oauth = config.oauth or OAuth()
    try:
        challenge = await wanted_login(config)
        store = TokenStore()
        before = store.find(config.login_name(name), config.url)
        # at another address, the client would have to be registered again
        usual = before.redirect_uri if before is not None and before.registered else None
        async with (
            Tasks() as tasks,
            _person(name, oauth, usual, browser=browser) as (redirect, person),
        ):
            account = Account(name, config, storage=LoginStorage(store), tasks=tasks)
            with anyio.fail_after(LOGIN_TIMEOUT):
                return await account.log_in(person, redirect, challenge, scope)
    except TimeoutError:
        problem = f"nobody logged in within {LOGIN_TIMEOUT / 60:g} minutes"
    except (LoginFailed, WireFault) as exc:
        problem = f"cannot log in: {config.redact(str(exc))}"
    raise Unavailable(name, problem)


async def _log_in_alone(name: str, config: HttpServer) -> StoredLogin:
    """Log in as a program does; the person decides where."""
    try:
        challenge = await wanted_login(config)
        async with Tasks() as tasks:
            account = Account(name, config, storage=LoginStorage(TokenStore()), tasks=tasks)
            return await account.log_in_alone(challenge, partial(_ask_about_place, name))
    except (LoginFailed, WireFault) as exc:
        raise Unavailable(name, f"cannot log in: {config.redact(str(exc))}") from None


async def _ask_about_place(name: str, place: StoredLogin, before: StoredLogin | None) -> None:
    if before is not None:
        note(f"before: {before.issuer}")
        note(f"  credentials were sent to {before.token_endpoint}")
    note(f"{name!r} names the authorization server {place.issuer}")
    note(f"  credentials are sent to {place.token_endpoint}")
    if not is_somebody_there():
        raise LoginFailed("there is no terminal to agree at; set `oauth.issuer` instead")
    # the server itself names that place, and could name one that collects credentials
    answer = await _ask(f"Let {name!r} log in there? [y/N]: ")
    if answer.lower() not in ("y", "yes"):
        raise LoginFailed("you did not agree; nothing was sent")


@asynccontextmanager
async def _person(
    name: str, oauth: OAuth, usual: str | None, *, browser: bool
) -> AsyncGenerator[tuple[str, Login]]:
    """The redirect URI, and how the user is sent to the login page."""
    if not browser:
        address = oauth.redirect_uri or REDIRECT.format(port=oauth.callback_port or PORT)
        yield address, _ask_to_paste
        return
    async with open_callback(
        name, port=oauth.callback_port, redirect=oauth.redirect_uri, usual=usual
    ) as callback:

        async def send(_: str, page: str) -> str:
            # not the page itself: other users of the machine see what a program is started with
            opened = open_page(callback.forward_to(page))
            note("log in with the browser that opens, or visit:" if opened else "visit to log in:")
            note(page)
            return await callback.wait(page)

        yield callback.address, send


async def _ask_to_paste(_: str, page: str) -> str:
    note("visit to log in, with any browser:")
    note(page)
    address = await _ask("the last page may fail to load; paste its address here:\n")
    if not address:
        raise LoginFailed("no address was pasted")
    return address


async def _ask(question: str) -> str:
    """The line that the user types; empty at the end of the input."""
    try:
        # unlike `input`, it ends with the command
        line = await to_thread.run_sync(TypedLines().ask, question, from_thread.check_cancelled)
    except EOFError:
        return ""
    return line.strip()


async def _revoke(config: HttpServer, login: StoredLogin) -> str | None:
    try:
        await LoginFlow(config, config.oauth or OAuth(), login).revoke(login)
    except (LoginFailed, WireFault) as exc:
        return config.redact(str(exc))
    return None


def _rights(login: StoredLogin) -> str:
    return f" with the scope {login.scope}" if login.scope else ""


def _place(name: str, config: HttpServer) -> str:
    store = TokenStore()
    key = (config.login_name(name), config.url)
    logins = (login for login in store.logins() if (login.server, login.url) == key)
    login = next(logins, None)
    where = "the keyring" if login is not None and login.secrets is None else str(store.file)
    return f"{where} for {show_url(URL(config.url))}"
