"""Remembers which server owns which tool name and resource address."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from multitap.catalog.addresses import choose_addresses, choose_templates
from multitap.names import Naming, choose_names, plain_name

Pair = tuple[str, str]
"""A server, and its own name for an item."""
Choices = Mapping[Pair, str]
"""The name that callers use."""
Choose = Callable[[str, Collection[str], Mapping[str, Pair]], dict[str, str]]
"""Chooses names for a server's items, given the names in use."""

MOST_UNUSED = 20_000
"""How many unused names of one server are kept."""


class NameRegistry:
    """The names of one kind of item; a given name stays, newcomers get another.

    Args:
        choose: Chooses names for new items.
        wish: The preferred name of an item.
        servers: The configured servers; names of others are free.
        remembered: Earlier choices; if two clash, the first one counts.
    """

    def __init__(
        self,
        choose: Choose,
        wish: Callable[[str, str], str],
        servers: Collection[str],
        remembered: Choices,
    ) -> None:
        self.holders: Mapping[str, Pair] = {}
        """The owner of each name; replaced, never changed."""
        self._choose = choose
        self._wish = wish
        self._names: dict[str, dict[str, str]] = {}
        self._unsaved: dict[Pair, str] = {}
        holders: dict[str, Pair] = {}
        for (server, raw), name in remembered.items():
            if server in servers and name not in holders:
                holders[name] = (server, raw)
                self._names.setdefault(server, {})[raw] = name
        self.holders = holders

    @property
    def choices(self) -> dict[Pair, str]:
        return {pair: name for name, pair in self.holders.items()}

    def give(self, server: str, raws: Collection[str]) -> Mapping[str, str]:
        """The names of all items of a server, by its own names."""
        own = self._names.setdefault(server, {})
        fresh = [raw for raw in dict.fromkeys(raws) if raw not in own]
        if fresh:
            names = self._choose(server, fresh, self.holders)
            self._note(server, names)
            own |= names
            new = {name: (server, raw) for raw, name in names.items()}
            self.holders = {**self.holders, **new}
        # A server that renames its tools with each list must not fill the memory; its old names are
        # free again.
        if len(own) > len(raws) + MOST_UNUSED:
            self._release(server, raws)
        return {raw: own[raw] for raw in raws}

    def take_unsaved(self) -> dict[Pair, str]:
        """Choices between servers with the same preferred name that are not stored yet."""
        unsaved, self._unsaved = self._unsaved, {}
        return unsaved

    def _note(self, server: str, names: Mapping[str, str]) -> None:
        for raw, name in names.items():
            wish = self._wish(server, raw)
            if name != wish:
                # both sides: after a restart, neither must take the other one's name
                self._unsaved[server, raw] = name
                if (holder := self.holders.get(wish)) is not None:
                    self._unsaved[holder] = wish

    def _release(self, server: str, used: Iterable[str]) -> None:
        own = self._names[server]
        self._names[server] = {raw: own[raw] for raw in used}
        used_names = {*self._names[server].values()}
        self.holders = {
            name: pair
            for name, pair in self.holders.items()
            if pair[0] != server or name in used_names
        }


class NameRegistries:
    """The names of tools and prompts, and the addresses of resources and templates.

    Args:
        servers: The configured servers, up or not.
        naming: The shape of names.
        remembered: Earlier choices, by kind.
        lasting: Whether choices outlive the process; if not, names depend on the configuration
            alone.
    """

    def __init__(
        self,
        servers: Collection[str],
        naming: Naming,
        remembered: Mapping[str, Choices],
        *,
        lasting: bool,
    ) -> None:
        self.servers = frozenset(servers)
        self.naming = naming
        choose = partial(_names_of_server, self.servers, naming, not lasting)
        wish = partial(plain_name, naming)

        def registry(
            kind: str, choose: Choose, wish: Callable[[str, str], str] = lambda _, raw: raw
        ) -> NameRegistry:
            return NameRegistry(choose, wish, self.servers, remembered.get(kind, {}))

        self.tools = registry(f"tools {naming}", choose, wish)
        self.prompts = registry(f"prompts {naming}", choose, wish)
        self.resources = registry("resources", choose_addresses)
        self.templates = registry("templates", choose_templates)

    @property
    def by_kind(self) -> dict[str, NameRegistry]:
        return {
            f"tools {self.naming}": self.tools,
            f"prompts {self.naming}": self.prompts,
            "resources": self.resources,
            "templates": self.templates,
        }

    def owners(self, name: str) -> set[str]:
        """The servers known to have a tool or prompt of that name."""
        pairs = (self.tools.holders.get(name), self.prompts.holders.get(name))
        return {pair[0] for pair in pairs if pair is not None}

    def take_unsaved(self) -> dict[str, dict[Pair, str]]:
        """The choices to store, by kind."""
        unsaved = {kind: registry.take_unsaved() for kind, registry in self.by_kind.items()}
        return {kind: choices for kind, choices in unsaved.items() if choices}


def _names_of_server(  # noqa: PLR0917 - the first three are bound once
    servers: Collection[str],
    naming: Naming,
    careful: bool,  # noqa: FBT001 - see above
    server: str,
    raws: Collection[str],
    held: Mapping[str, Pair],
) -> dict[str, str]:
    return choose_names(server, raws, servers=servers, naming=naming, taken=held, careful=careful)
