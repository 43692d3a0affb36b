"""The people who use a gateway: who is here, and which servers are their own.

A server with `credentials = "per-user"` has one link for each person, with that person's login or
keys. What a person sees is the catalog of the hub, in which their links stand in place of the
gateway's own: tools, prompts, resources and everything that is derived from them then lead to their
own session, and nowhere else.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager

import anyio

from multitap.catalog.catalog import Catalog
from multitap.config.models import ServerConfig
from multitap.errors import MultitapError
from multitap.hub.personal_servers import CommonServers, PersonalServers
from multitap.oauth.storage import LoginSharing, LoginStorage, RenewalPermit, SharedLogin
from multitap.principal import Person
from multitap.tasks import Bell, keep_going, now
from multitap.trust.personal_vault import PersonalTokenStore, PersonalVault, account_place
from multitap.upstream.link import Link

logger = logging.getLogger(__name__)

MOST_PEOPLE = 1000
"""People whose links are kept; beyond that, those who have been away longest are dropped."""
MANY_PROGRAMS, MOST_PROGRAMS = 64, 128
"""Programs of all people that may run: above the first number, idle ones are stopped; above the
second, no other is started."""
START_PATIENCE = 10.0
"""Seconds that a person's first list waits for their servers."""
_LOOK = 0.5  # seconds between two looks at the vault: a change takes effect within a second


class Members:
    """Everyone with servers of their own.

    Args:
        common: What all of them share.
        sharing: Shares accounts with other replicas.
        changed: Rings with every change of anyone's servers.
    """

    def __init__(
        self, common: CommonServers, *, sharing: LoginSharing | None, changed: Bell
    ) -> None:
        self.common = common
        common.is_full = lambda: len(self._running()) >= MOST_PROGRAMS
        common.on_connected = self._make_room
        self._sharing = sharing
        self._changed = changed
        self._members: dict[Person, PersonalServers] = {}
        self._is_watching = False
        self._seen: object = None
        """The stamp of the vault as it was last read."""
        self.is_needed = False
        """Whether there is any server where people have their own accounts."""

    @property
    def vault(self) -> PersonalVault:
        return self.common.vault

    @property
    def servers(self) -> Mapping[str, ServerConfig]:
        """The servers where people have their own accounts."""
        return self.common.per_user

    def apply(self, links: Mapping[str, Link]) -> None:
        """Follow the links of the hub: servers that have changed end for everyone."""
        common, before = self.common, self.common.per_user
        common.links = links
        servers = {name: link.config for name, link in links.items() if link.config.is_per_user}
        if servers == before:
            return
        common.per_user = servers
        self.is_needed = bool(servers)
        # most gateways have no such server, and need not look
        if not self._is_watching:
            self._is_watching = True
            self._seen = self.vault.stamp()
            common.tasks.start_soon(keep_going, self._watch, name="accounts of people")
            if self._sharing is not None:
                common.tasks.start_soon(self._sharing.follow, self._reload)
        for member in self._members.values():
            for name in tuple(member.links):
                if servers.get(name) != before.get(name):
                    member.end(name)
            member.load_soon()

    def of(self, person: Person) -> PersonalServers:
        """One person's servers; their accounts are looked up when they first come."""
        if (member := self._members.get(person)) is None:
            if len(self._members) >= MOST_PEOPLE:
                self.drop(min(self._members.values(), key=lambda member: member.used).person)
            storage = self._storage(person)
            member = self._members[person] = PersonalServers(person, self.common, storage)
            member.load_soon()
        return member

    def _storage(self, person: Person) -> LoginStorage:
        sharing = None if self._sharing is None else PersonalSharing(self._sharing, person)
        return LoginStorage(PersonalTokenStore(self.vault, person), sharing)

    async def forget_accounts(self, person: Person) -> None:
        """Delete the accounts of a person, also those that other replicas could give back."""
        storage = self._storage(person)
        try:
            for name, config in self.common.per_user.items():
                await storage.remove(*account_place(name, config))
            # servers that are no longer configured
            await anyio.to_thread.run_sync(self.vault.remove_person, person)
        except MultitapError as exc:
            logger.warning("the accounts of a person cannot be deleted: %s", exc)

    def catalog(self, person: Person, shared: Catalog) -> Catalog:
        """What a person sees now, made of the hub's catalog and their own links."""
        if not self.common.per_user:
            return shared
        member = self.of(person)
        member.used = now()
        return member.catalog(shared)

    async def wait_ready(self, person: Person | None) -> None:
        """Wait until a person's accounts are known and their servers are up, within limits."""
        if person is None or not self.common.per_user:
            return
        member = self.of(person)
        with anyio.move_on_after(START_PATIENCE):
            await member.loaded.wait()
            # a server whose list is known is listed, even while it starts again
            while member.is_starting:
                await self._changed.wait()

    def link(self, person: Person | None, server: str) -> Link | None:
        """The link of a person to a server, if they have one."""
        member = None if person is None else self._members.get(person)
        return None if member is None else member.links.get(server)

    def links(self) -> Iterator[Link]:
        """All links of all people."""
        for member in tuple(self._members.values()):
            yield from tuple(member.links.values())

    def drop(self, person: Person) -> None:
        """End all links of a person, such as one who may no longer use the gateway."""
        if (member := self._members.pop(person, None)) is not None:
            for name in tuple(member.links):
                member.end(name)

    def drop_all(self, people: Iterable[Person]) -> None:
        """End all links of some people; who may still come in gets new ones."""
        for person in people:
            self.drop(person)
            # or what they came in with could still be exchanged
            self.common.forget(person)

    def _running(self) -> list[Link]:
        return [link for link in self.links() if link.pid is not None and link.session]

    def _make_room(self) -> None:
        """Stop programs that nobody uses if there are too many."""
        running = self._running()
        surplus = len(running) - MANY_PROGRAMS
        idle = [link for link in running if not link.requests.slots.working]
        # those who have been idle for longest first
        idle.sort(key=lambda link: -link.requests.idle_for())
        for link in idle[: max(surplus, 0)]:
            if link.person is not None and self.link(link.person, link.name) is link:
                self._members[link.person].put_to_sleep(link)

    async def _watch(self) -> None:
        # polled: the command line, or another gateway of this user, may write it
        while True:
            await anyio.sleep(_LOOK)
            if (fresh := self.vault.stamp()) != self._seen:
                await self._reload()
                self._seen = fresh

    async def _reload(self) -> None:
        for member in tuple(self._members.values()):
            await member.reload()


class PersonalSharing:
    """See `LoginSharing`; the records of one person, apart from those of all others."""

    def __init__(self, sharing: LoginSharing, person: Person) -> None:
        self._sharing = sharing
        self._mark = person.mark
        self.follow = sharing.follow

    async def find(self, server: str, url: str) -> SharedLogin | None:
        return await self._sharing.find(self._name(server), url)

    async def tell(self, server: str, url: str, shared: SharedLogin) -> None:
        await self._sharing.tell(self._name(server), url, shared)

    def renewing(self, server: str, url: str) -> AbstractAsyncContextManager[RenewalPermit]:
        return self._sharing.renewing(self._name(server), url)

    def _name(self, server: str) -> str:
        # a name of a server has no line break
        return f"{server}\n{self._mark}"
