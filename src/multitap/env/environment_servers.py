"""The servers of an environment: its configuration, and its hub while open."""

from dataclasses import replace
from functools import cached_property

from multitap.config import Loaded, Scope, Settings
from multitap.errors import HubClosed, Unavailable, UnknownName
from multitap.hub.hub import Hub
from multitap.hub.reload import Loader, Reloader
from multitap.hub.supervisor import is_up
from multitap.records import dataclass
from multitap.trust.secrets.vault import model_scope


@dataclass(frozen=True, slots=True)
class McpClientLoadResult:
    """How many servers are up, and which have failed."""

    loaded: int
    failed: tuple[str, ...] = ()


class EnvironmentServers:
    """The configured servers, each connected unless it was disconnected explicitly.

    Args:
        load: Reads the configuration, each time from the start.
        owner: The name of the environment, for error messages.
    """

    def __init__(self, load: Loader, owner: str) -> None:
        self._load = load
        self._owner = owner
        self._disconnected: frozenset[str] = frozenset()  # replaced: `_read` runs in a thread
        self.running: Hub | None = None
        """None while the environment is closed."""

    @cached_property
    def files(self) -> Reloader:
        """The configuration; first read on access, when a subclass is fully initialised."""
        return Reloader(self._read)

    @property
    def hub(self) -> Hub:
        """The hub.

        Raises:
            HubClosed: The environment is not open.
        """
        if self.running is None:
            raise self.not_open()
        return self.running

    def not_open(self) -> HubClosed:
        """The error for a closed environment."""
        return HubClosed(f"{self._owner} is not open", hint="use it inside its `async with` block")

    @property
    def settings(self) -> Settings:
        """The settings in force now."""
        return self.running.settings if self.running else self.files.settings

    @property
    def scope(self) -> Scope:
        """Expands variables in the configuration."""
        return model_scope(self.files.loaded.search.folder)

    async def load(self) -> McpClientLoadResult:
        """Read the configuration again, and wait until every server has answered or failed."""
        hub = self.hub
        await self.files.reload(hub)
        await hub.settled()
        return self.outcome()

    def outcome(self) -> McpClientLoadResult:
        """Which of the enabled servers are up now."""
        wanted = {name: link for name, link in self.hub.links.items() if link.config.enabled}
        up = [name for name, link in wanted.items() if is_up(link)]
        failed = {*self.files.loaded.broken, *wanted} - {*up}
        return McpClientLoadResult(len(up), tuple(sorted(failed)))

    def disconnect(self, name: str) -> None:
        """Stop a server until it is reconnected; ignores unknown names."""
        hub = self.hub
        self._disconnected |= {name}
        hub.apply(self._without_disconnected(hub.settings))

    async def reconnect(self, name: str) -> None:
        """Start a server again, and wait for it.

        Raises:
            UnknownName: None of that name is configured.
            Unavailable: It does not come up, or is disabled.
        """
        hub = self.hub
        if name in self._disconnected:
            self._disconnected -= {name}
            known = self._said.settings.servers
            again = {name: known[name]} if name in known else {}
            hub.apply(hub.settings.with_servers({**hub.settings.servers, **again}))
        else:
            hub.restart(name)
        await _wait_for_answer(hub, name)

    def _read(self) -> Loaded:
        self._said = self._load()
        return replace(self._said, settings=self._without_disconnected(self._said.settings))

    def _without_disconnected(self, settings: Settings) -> Settings:
        off = {
            name: server.model_copy(update={"enabled": False})
            for name, server in settings.servers.items()
            if name in self._disconnected
        }
        return settings.with_servers({**settings.servers, **off})


async def _wait_for_answer(hub: Hub, name: str) -> None:
    """Wait until a server is up.

    Raises:
        Unavailable: It is not, or is no longer wanted.
    """
    with (
        hub.events.subscribe() as events
    ):  # before the first check, otherwise a change could be missed
        while (link := hub.links.get(name)) is not None and not link.is_settled:
            await anext(events)
    if link is None:
        raise UnknownName(f"no server named {name!r}")
    if not is_up(link):
        raise Unavailable.because(name, link.failure, f"it is {link.state}")
