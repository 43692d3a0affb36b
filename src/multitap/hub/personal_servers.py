"""One person's servers: the links with their own accounts, and the catalog that they see."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio import to_thread
from msgspec import structs

from multitap.catalog import catalog as catalogs
from multitap.catalog.catalog import Catalog, CatalogSection, Tool
from multitap.catalog.vetting import Vetting, VettingResult
from multitap.config.models import HttpServer, ServerConfig, StdioServer
from multitap.config.variables import Reference, put_values
from multitap.errors import AuthRequired, MultitapError, RequestFailed
from multitap.events import Event, EventBus, LinkState, ListsAnnounced, ServerLog
from multitap.hub.catalog_builder import CatalogBuilder
from multitap.oauth.storage import Login, Logins, LoginStorage
from multitap.principal import NO_PERSON, Person
from multitap.tasks import CancelHandle, Tasks
from multitap.trust.personal_vault import PersonalVault, account_place, key_account, keys_of
from multitap.trust.pins import Pins
from multitap.trust.stored_logins import StoredLogin
from multitap.upstream.connect import Dialer
from multitap.upstream.link import Expand, Link, RememberedServer
from multitap.upstream.lists import Offers
from multitap.upstream.questions import Handlers, Screen
from multitap.upstream.start_queue import StartQueue

if TYPE_CHECKING:
    from multitap.wire.http_origin import Authorizer

logger = logging.getLogger(__name__)

MARK = "MULTITAP_PERSON"
"""A variable in entries of servers: tells the folders of people apart."""

CONNECT: Mapping[str, object] = {
    "name": "connect",
    "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
}
"""What a server offers to a person who has no account there yet."""


class LinkParts(msgspec.Struct, frozen=True, kw_only=True):
    """What links of people are made with, besides what is their own."""

    dialer: Dialer
    """Opens wires; makes one for each person."""
    expand: Expand
    """Expands the variables of a server's configuration."""
    starts: StartQueue
    events: EventBus
    screen: Screen | None
    """Checks what servers ask."""
    health_interval: Callable[[], float]


class CommonServers:
    """What all people share: how links are made, and the servers as they are configured.

    Args:
        tasks: Runs links.
        builder: Has the sections of the servers that all people share.
        parts: What links are made with.
        on_change: Called when anything in anyone's catalog may have changed.
    """

    def __init__(
        self,
        tasks: Tasks,
        builder: CatalogBuilder,
        parts: LinkParts,
        on_change: Callable[[], None],
    ) -> None:
        self.tasks = tasks
        self.builder = builder
        self.parts = parts
        self.on_change = on_change
        self.handlers_for: Callable[[Person], Handlers] = lambda _: Handlers()
        """Makes the handlers for what a person's servers ask; by default, nothing is answered."""
        self.per_user: Mapping[str, ServerConfig] = {}
        """The servers where people have their own accounts."""
        self.links: Mapping[str, Link] = {}
        """The gateway's own links, of all servers."""
        self.exchange: Callable[[Person, str, HttpServer], Authorizer] | None = None
        """Makes a person's access to a server that takes exchanged tokens."""
        self.forget: Callable[[Person], None] = lambda _: None
        """Forgets what a person came in with, so that it cannot be exchanged any more."""
        self.forget_results: Callable[[], None] = lambda: None
        """Forgets results that may be given again: they may be of another account."""
        self.is_full: Callable[[], bool] = lambda: False
        """Whether no other program of a person may start."""
        self.on_connected: Callable[[], None] = lambda: None
        """Called when another program of a person is up."""

    @cached_property
    def vault(self) -> PersonalVault:
        """Keeps the accounts of all people."""
        return PersonalVault()


class PersonalServers:
    """One person: their accounts, their links, and what they see."""

    def __init__(self, person: Person, common: CommonServers, storage: LoginStorage) -> None:
        self.person = person
        self.links: dict[str, Link] = {}
        self.used = 0.0
        """When they last looked, by the loop's clock."""
        self.loaded = asyncio.Event()  # made in callbacks, where anyio cannot be used
        self._common = common
        self._storage = storage
        self._logins = Logins(common.tasks, None, storage=storage)
        self._logins.on_change = self._login_changed
        self._logins.exchange = self._exchange
        self._scopes: dict[Link, CancelHandle] = {}
        self._sections: dict[Link, CatalogSection] = {}
        # theirs only: others may be offered something else
        self._vetting = Vetting(Pins())
        self._base: Catalog | None = None
        """The hub's catalog that theirs was made with; None if theirs is out of date."""
        self._catalog = Catalog()

    @property
    def is_starting(self) -> bool:
        """Whether a server starts whose list is not known yet."""
        return any(
            not link.is_settled and (link.offers is None or is_connect_only(link.offers))
            for link in self.links.values()
        )

    def catalog(self, shared: Catalog) -> Catalog:
        """What they see: the hub's catalog, with their links in place of the gateway's own."""
        if self._base is not shared:
            self._build(shared)
        return self._catalog

    def load_soon(self) -> None:
        """Make the links that are missing; lists wait for that."""
        self._base = None
        self.loaded.clear()
        self._common.tasks.start_apart(self._load)

    async def account(self, server: str) -> StoredLogin | None:
        """Their account at a server; None if they have not connected one."""
        config = self._common.per_user.get(server)
        if config is None or self.person == NO_PERSON:
            return None
        return await self._storage.find(*account_place(server, config))

    async def connect_keys(self, server: str, keys: Mapping[str, str]) -> None:
        """Keep what they typed for a server, and use it from now on."""
        where = account_place(server, self._common.per_user[server])
        before = _keys_in(await self._storage.find(*where))
        await self._storage.add(key_account(*where, {**before, **keys}))
        self._common.forget_results()
        link = self.links.get(server)
        if link is not None and link.session is None and is_connect_only(link.offers):
            link.restart()  # its waiting calls go on
        else:
            self.replace(server)

    async def log_in(self, server: str, send: Login, redirect: str) -> None:
        """Have them log in at a server's authorization server, and use it from now on.

        Args:
            server: The server.
            send: Sends them to a page, and returns the address that they were redirected to.
            redirect: The address that they are redirected to.

        Raises:
            LoginFailed: The login failed; an earlier one is kept.
            WireFault: A server cannot be reached now, or has no login.
        """
        from multitap.oauth.discovery import wanted_login  # noqa: PLC0415 - many never log in

        config = await to_thread.run_sync(
            self._expand, server, self._common.per_user[server], abandon_on_cancel=True
        )
        account = self._logins.account(server, config) if isinstance(config, HttpServer) else None
        if not isinstance(config, HttpServer) or account is None or account.is_machine:
            raise AuthRequired("it has no login for people")
        challenge = account.challenge or await wanted_login(config)
        link = self.links.get(server)
        had_session = link is not None and link.session is not None
        await account.log_in(send, account.settings.redirect_uri or redirect, challenge)
        # without a session, the changed login has started it already
        if had_session:
            self.replace(server)

    def logged_in_at(self, server: str) -> float:
        """When they last logged in at a server, by the system's clock; 0 if they have not."""
        account = self._logins.find(server)
        return 0.0 if account is None else account.changed_at

    async def disconnect(self, server: str) -> bool:
        """Forget their account, and end what uses it; returns whether there was one."""
        place = account_place(server, self._common.per_user[server])
        had_one = await self._storage.remove(*place)
        await self._logins.reload()
        self.replace(server)
        return had_one

    async def reload(self) -> None:
        """Notice accounts that other processes or replicas have changed."""
        await self._logins.reload()
        for server, config in tuple(self._common.per_user.items()):
            link = self.links.get(server)
            if link is None or self.person == NO_PERSON or not keys_of(config):
                continue
            try:
                stored = await self._storage.find(*account_place(server, config))
            except MultitapError as exc:
                # one file that cannot be read now must not end the watch, and the hub with it
                logger.warning("%s: the account of a person cannot be read: %s", server, exc)
                continue
            if stored is not None and link.session is None and _lacks_list(link):
                link.restart()
            elif stored is None and link.session is not None:
                self.replace(server)

    def make_link(self, server: str, config: ServerConfig, offers: Offers | None = None) -> Link:
        """Make a link with their account; the caller runs it."""
        parts = self._common.parts
        handlers = self._common.handlers_for(self.person)
        link = Link(
            server,
            config,
            dial=parts.dialer.for_person(self._logins, self.person.mark),
            expand=self._expand,
            handlers=structs.replace(handlers, screen=parts.screen),
            remembered=RememberedServer(offers=offers),
            starts=parts.starts,
            health_interval=parts.health_interval(),
            on_change=self._link_changed,
            on_event=partial(_publish, parts.events),
            person=self.person,
        )
        # what is followed in it changes only for this person
        link.report.session = f"person {self.person.mark}"
        return link

    def replace(self, server: str) -> None:
        """Start again: nothing of the old account's session or list may be left."""
        if server in self.links:
            self.end(server)
        self.load_soon()

    def put_to_sleep(self, link: Link) -> None:
        """Stop a program until it is used again; its list stays."""
        offers = link.offers
        self.end(link.name)
        self._start(link.name, self._common.per_user[link.name], has_account=False)
        self.links[link.name].listing.expect(offers)

    def end(self, server: str) -> None:
        """End a link, and what it offers."""
        link = self.links.pop(server)
        self._base = None
        self._common.forget_results()
        self._sections.pop(link, None)
        if (scope := self._scopes.pop(link, None)) is not None:
            scope.cancel()

    def _exchange(self, server: str, config: HttpServer) -> "Authorizer":
        """Their access to a server that takes exchanged tokens."""
        if (exchange := self._common.exchange) is None:
            raise RequestFailed("it is used with a sign-in at an identity provider", sent=False)
        return exchange(self.person, server, config)

    async def _load(self) -> None:
        """Make the links that they lack; those with an account start at once."""
        for server, config in tuple(self._common.per_user.items()):
            has_account = not _needs_account(config)
            try:
                has_account = has_account or await self.account(server) is not None
            except MultitapError as exc:
                logger.warning("%s: the account of a person cannot be read: %s", server, exc)
            # the settings may have changed meanwhile
            if server not in self.links and self._common.per_user.get(server) == config:
                self._start(server, config, has_account=has_account)
        self._base = None
        self.loaded.set()
        self._common.on_change()

    def _start(self, server: str, config: ServerConfig, *, has_account: bool) -> None:
        if self.person == NO_PERSON:
            return  # see `_build`
        # lazy: with a list, it sleeps until it is used, and again after a time without calls
        own = config.replace(start="lazy")
        link = self.make_link(server, own, None if has_account else self._substitute(server))
        self.links[server] = link
        scope = self._scopes[link] = CancelHandle()
        self._common.tasks.start_apart(_run, link, scope)

    def _substitute(self, server: str) -> Offers:
        """What they see of a server before they have connected an account."""
        shared, config = self._common.links.get(server), self._common.per_user.get(server)
        if config is not None and config.service_account and shared is not None and shared.offers:
            return shared.offers
        return Offers(tools=({**CONNECT},))

    def _expand(self, server: str, config: ServerConfig) -> ServerConfig:
        """Put their own keys into a server's configuration, then everything else."""
        common = self._common
        if isinstance(config, StdioServer) and common.is_full():
            raise RequestFailed("too many programs of people are in use", sent=False)
        keys: Mapping[str, str] = {}
        if names := keys_of(config):
            keys = _keys_in(common.vault.find(self.person, *account_place(server, config)))
            if missing := [name for name in names if name not in keys]:
                raise AuthRequired(
                    f"it needs a key of your own ({', '.join(missing)})",
                    hint="connect your account at this server",
                )
        expanded = common.parts.expand(
            server, with_values(config, {**keys, MARK: self.person.mark})
        )
        expanded.redact.learn(keys.values())
        return expanded

    def _link_changed(self, link: Link) -> None:
        if link.state is LinkState.NEEDS_AUTH and link.offers is None:
            # an account that no longer works: there must be a way to connect it again
            link.listing.expect(self._substitute(link.name))
        self._base = None
        if link.state is LinkState.CONNECTED:
            self._common.on_connected()
        self._common.on_change()

    def _login_changed(self, server: str, is_logged_in: bool) -> None:  # noqa: FBT001 - a callback
        link = self.links.get(server)
        if link is None or (is_logged_in and link.session is not None):
            return  # a renewed token: its session goes on
        if is_logged_in:
            link.restart()
        else:
            self.replace(server)

    def _build(self, shared: Catalog) -> None:
        builder = self._common.builder
        links, sections = dict(self._common.links), dict(builder.sections)
        for server, config in self._common.per_user.items():
            gateway_link = links.pop(server, None)
            if gateway_link is not None:
                if self.person == NO_PERSON and config.service_account:
                    links[server] = gateway_link  # a program has the account that is nobody's
                    continue
                sections.pop(gateway_link, None)
            if (own := self.links.get(server)) is not None:
                links[server] = own
                if (offers := own.offers) is not None:
                    sections[own] = self._sections[own] = self._section(own, offers)
        revision, registries = shared.revision, builder.registries
        self._catalog = catalogs.build(sections.items(), revision, registries, links)
        self._base = shared

    def _section(self, link: Link, offers: Offers) -> CatalogSection:
        section, builder = self._sections.get(link), self._common.builder
        if section is not None and section.offers is offers:
            return section
        if is_connect_only(offers):
            return _connect_section(link, offers, builder)
        return catalogs.build_section(
            link, offers, builder.registries, self._vetting, builder.policy
        )


def _publish(events: EventBus, event: Event) -> None:
    # screens and the log are for those who run the gateway, and the lists of one person are of no
    # concern to others; their own clients notice from the catalog
    if not isinstance(event, ServerLog | ListsAnnounced):
        events.publish(event)


def is_connect_only(offers: Offers | None) -> bool:
    """Whether these are not a server's offers, but the one tool that connects an account."""
    return offers is not None and len(offers.tools) == 1 and _is_connect(offers.tools[0])


def is_connect(tool: Tool) -> bool:
    """Whether a tool is ours, and connects an account."""
    return tool.link.person is not None and _is_connect(tool.definition)


def _is_connect(definition: Mapping[str, object]) -> bool:
    # by identity: a server may have a tool that looks like it
    return definition.get("inputSchema") is CONNECT["inputSchema"]


def _needs_account(config: ServerConfig) -> bool:
    """Whether a server can only be used with a login or key, as far as its entry says."""
    needs_login = isinstance(config, HttpServer) and config.exchange is None
    return needs_login or bool(keys_of(config))


def _keys_in(stored: StoredLogin | None) -> Mapping[str, str]:
    return {} if stored is None or stored.secrets is None else stored.secrets.keys


def _lacks_list(link: Link) -> bool:
    return link.offers is None or link.listing.is_stale


def _connect_section(link: Link, offers: Offers, builder: CatalogBuilder) -> CatalogSection:
    # by hand: no filter of the server may hide the only way in
    name = builder.registries.tools.give(link.name, ("connect",))["connect"]
    text = f"Connect your own account to {link.name}; its tools appear once you have."
    definition = {**offers.tools[0], "description": text}
    tool = Tool(name, link.name, "connect", text, definition, link)
    return CatalogSection(offers, {name: tool}, {}, {}, (), (), (), {}, VettingResult({}, {}))


def with_values(config: ServerConfig, values: Mapping[str, str]) -> ServerConfig:
    """A server with a person's values in place of its `${auth:NAME}`; other variables stay."""

    def value(reference: Reference) -> str | None:
        is_mark = reference.source == "env" and reference.name == MARK
        return values.get(reference.name) if is_mark or reference.source == "auth" else None

    def put(text: str) -> str:
        return put_values(text, value)

    match config:
        case HttpServer():
            headers = {name: put(value) for name, value in config.headers.items()}
            return config.replace(url=put(config.url), headers=headers)
        case StdioServer():
            env = {name: put(value) for name, value in config.env.items()}
            args = tuple(map(put, config.args))
            return config.replace(command=put(config.command), args=args, env=env)
        case _:
            return config


async def _run(link: Link, scope: CancelHandle) -> None:
    # in a group of its own: see `Supervisor`
    with scope:
        async with anyio.create_task_group() as alone:
            alone.start_soon(link.run, name=f"link {link.name} of a person")
