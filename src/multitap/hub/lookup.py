"""Resolves names and addresses, waiting for servers that are still starting."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from multitap.catalog.catalog import Catalog, Prompt, Resource, Tool
from multitap.config.problems import nearest
from multitap.errors import NotAllowed, Unavailable, UnknownName, join_hints, quoted
from multitap.events import Withheld, untrusted_words
from multitap.hub import routes
from multitap.hub.catalog_builder import CatalogBuilder
from multitap.hub.permissions import AuditTrail
from multitap.hub.routes import LIBRARY, CallDefaults
from multitap.hub.supervisor import Supervisor
from multitap.names import Naming, likely_owners
from multitap.tasks import Bell
from multitap.upstream.availability import still_starting
from multitap.upstream.link import Link
from multitap.upstream.questions import NOBODY, CallContext
from multitap.wire.request import Deadline

_Found = TypeVar("_Found")


class Lookup:
    """Finds tools, prompts and resources by name, and waits for servers that are starting."""

    def __init__(
        self, builder: CatalogBuilder, supervisor: Supervisor, changed: Bell, trail: AuditTrail
    ) -> None:
        self.catalog = Catalog()
        """The current catalog."""
        self.withheld: tuple[Withheld, ...] = ()
        """What is not offered because nobody has trusted it."""
        self._builder = builder
        self._supervisor = supervisor
        self._changed = changed
        self._trail = trail

    @property
    def _untrusted(self) -> str:
        return untrusted_words(self.withheld)

    async def find_tool(self, name: str, *, context: CallContext = NOBODY) -> Tool:
        """The tool that `Hub.call` would call; waits for starting servers that may have it.

        Raises:
            UnknownName: There is no such tool.
            NotAllowed: It is hidden or withheld.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        async with self.noting_refusal(name, context):
            tool = await self.wait_for(
                lambda: routes.look_up(self.catalog, name),
                name,
                context=context,
                defaults=LIBRARY,
            )
        if tool is None:
            raise routes.unknown(self.catalog.tools, name, self._untrusted)
        return tool

    @asynccontextmanager
    async def noting_refusal(self, name: str, context: CallContext) -> AsyncGenerator[None]:
        """Record refusals in the audit log while entered."""
        try:
            yield
        except NotAllowed as exc:
            await self._trail.note_refusal(name, str(exc), context)
            raise

    async def find_prompt(self, name: str, *, context: CallContext = NOBODY) -> Prompt:
        """A prompt by its catalog name; waits for starting servers that may have it.

        Raises:
            UnknownName: There is no such prompt.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        prompt = await self.wait_for(
            lambda: self.catalog.prompts.get(name), name, context=context, defaults=LIBRARY
        )
        if prompt is None:
            near = nearest(name, self.catalog.prompts)
            guess = f"did you mean {quoted(near)}? " if near else ""
            hint = join_hints(f"{guess}`multitap prompts` lists all prompts", self._untrusted)
            raise UnknownName(f"no prompt named {quoted(name)}", hint=hint)
        return prompt

    async def find_resource(self, uri: str, server: str | None, context: CallContext) -> Resource:
        """A resource by its address; waits for starting servers that may have it.

        Raises:
            UnknownName: No server has it.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        resource = await self.wait_for(
            lambda: self.catalog.find_resource(uri, server),
            None,
            defaults=LIBRARY,
            context=context,
            has=lambda name: server in {None, name},
        )
        if resource is None:
            hint = join_hints("`multitap resources` lists all resources", self._untrusted)
            raise UnknownName(f"no server offers the resource {quoted(uri)}", hint=hint)
        return resource

    def owner(self, uri: str, server: str | None) -> tuple[Link, str]:
        """The server that has a resource now, and its address there.

        Raises:
            UnknownName: There is no such resource, or no such server.
            NotAllowed: It is withheld.
        """
        if server is not None:
            link = self._supervisor.link(server)
            self.catalog.check_readable(server, uri)
            return link, uri
        resource = self.catalog.find_resource(uri)
        if resource is None:
            raise UnknownName(
                f"no server offers the resource {quoted(uri)}",
                hint=self._untrusted or None,
            )
        return resource.link, resource.uri

    async def wait_for(
        self,
        find: Callable[[], _Found | None],
        name: str | None,
        *,
        defaults: CallDefaults,
        context: CallContext = NOBODY,
        has: Callable[[str], bool] = lambda _: True,
        links_now: Callable[[], Mapping[str, Link]] | None = None,
    ) -> _Found | None:
        """What `find` returns, once the starting servers that may have it are up.

        The server of a name may be remembered; if not, the name itself limits the candidates. An
        address or a bare name may belong to any server.

        Args:
            find: Looks for it.
            name: The name of the tool or prompt; None for a resource.
            defaults: Time limits for servers that do not set their own.
            context: The caller and its limits.
            has: Whether a server is visible to the caller.
            links_now: Returns the links that the caller uses, if not the hub's own.

        Raises:
            Unavailable: The server that may have it failed, or is not up in time.
        """
        # the usual case: no wait
        if (result := find()) is not None:
            return result
        registries = self._builder.registries
        owners = registries.owners(name) if name is not None else set[str]()
        # if a name tells whose it is, the failure of that server is the answer
        is_telling = bool(owners) or (name is not None and registries.naming is not Naming.BARE)
        waited: dict[Link, None] = {}
        since = anyio.current_time()
        deadline: Deadline | None = None
        while True:
            # replaced with each change of the settings
            links = self._supervisor.links if links_now is None else links_now()
            names = [*(owners or links)]
            if name is not None:
                names = likely_owners(name, names, self._builder.registries.naming)
            unseen = [
                link
                for link in map(links.get, names)
                if link is not None and link.offers is None and has(link.name)
            ]
            starting = [link for link in unseen if not link.is_settled]
            if not starting:
                break
            waited.update(dict.fromkeys(starting))
            if deadline is None:
                limits = (
                    defaults.deadline(x.config, context=context, since=since) for x in starting
                )
                # Set once: servers that are added later do not prolong the wait.
                deadline = max(limits, key=lambda limit: limit.at)
            with anyio.move_on_after(deadline.at - anyio.current_time()) as clock:
                await self._changed.wait()
            if (result := find()) is not None:
                return result
            if clock.cancelled_caught:
                raise Unavailable(
                    starting[0].name,
                    still_starting(deadline),
                    hint="call again in a moment, or raise `timeout`",
                )
        for link in unseen:
            if (failure := link.failure) is not None and (is_telling or link in waited):
                raise Unavailable(link.name, str(failure), hint=failure.hint, failure=failure)
        return None
