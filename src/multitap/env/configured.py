"""An environment from configuration files alone: for a program, and as a server of a gateway."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property, partial, reduce
from hashlib import sha256
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup
from msgspec.structs import replace

from multitap.agent.skills import Accepts, Skills, overview, prompt_text, reading_tool, scan
from multitap.catalog.audience import Audience
from multitap.catalog.catalog import Tool
from multitap.config import (
    Loaded,
    LocalServer,
    Place,
    Problem,
    Scope,
    Search,
    Serve,
    Settings,
    Severity,
    Source,
    Surroundings,
    native,
)
from multitap.config.owners import is_within
from multitap.config.problems import did_you_mean
from multitap.config.sources import FOLDER
from multitap.config.variables import expand, locate
from multitap.env.environment import SERVER, TIMEOUT, BaseEnvironment, Sampled
from multitap.errors import ConfigError, MultitapError
from multitap.hub.hub import Hub
from multitap.hub.reload import Loader
from multitap.tasks import Bell
from multitap.tools import HubTools, ToolDef
from multitap.trust.projects import load_trusted
from multitap.upstream.connect import Placements, local_placements
from multitap.upstream.questions import Handlers, RequestOrigin

if TYPE_CHECKING:
    import mcp_types as types

    from multitap.env.server import HostedServer
    from multitap.env.world import ProfileWorld

logger = logging.getLogger(__name__)


class ConfiguredEnvironment(BaseEnvironment):
    """An environment from files: servers, Python functions, skills, agents, profiles, prompts.

    It follows the files while it is open. `problems` says what in them cannot be used.

    Args:
        files: The files, or what reads them. Parts of a project are used once a person has
            trusted them.
    """

    def __init__(self, files: Search | Loader) -> None:
        super().__init__()
        self._load = partial(load_trusted, files) if isinstance(files, Search) else files
        self._equipment = Equipment()

    @classmethod
    def load(cls, path: Path | str | None = None) -> Self:
        """Read this file, and `mcpservers/` and `skills/` beside it; by default, our own files.

        A file that is named here needs no further trust.

        Raises:
            ConfigError: The file cannot be read.
        """
        environment = cls(beside(Path(path)) if path else native(Surroundings.here()))
        environment.files.loaded.check()
        return environment

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the files, and of the functions, skills and prompts they name."""
        return (*super().problems, *self._equipment.problems)

    @property
    def skills(self) -> Skills:
        """The current skills, by name."""
        return find_skills(self.files.loaded, self.scope)

    def briefing(self) -> str:
        """The skills, for every agent's system prompt."""
        return overview(self.skills)

    def load_configuration(self) -> Loaded:
        """Read all files again."""
        return self._load()

    async def _on_open(self, tasks: TaskGroup) -> None:
        await self._equip()
        tasks.start_soon(self._follow, self.hub)
        await super()._on_open(tasks)

    async def _follow(self, hub: Hub) -> None:
        """Whenever the files are read again, load their functions, skills and prompts again."""
        # there may be thousands of calls, and none of them changes the files
        with hub.events.subscribe(calls=False) as events:
            while True:
                # compared before waiting: they may have been read again before we subscribed
                if self._equipment.loaded is not self.files.loaded:
                    await self._equip()
                await anext(events)

    async def _equip(self) -> None:
        loaded, scope = self.files.loaded, self.scope
        # Importing functions runs the user's code, which may be slow.
        # and may never return: we leave it behind when the environment is closed
        equipment = await to_thread.run_sync(gather, loaded, scope, abandon_on_cancel=True)
        # old ones first: the name of a function that stays must be free
        for tool in self._equipment.tools:
            self.registry.unregister(tool.name)
        added: list[ToolDef] = []
        problems = [*equipment.problems]
        for tool in equipment.tools:
            try:
                self.registry.register(tool)
            except MultitapError as exc:
                problems.append(_wrong(str(exc), loaded, "environment.tools"))
            else:
                added.append(tool)
        for problem in problems:
            logger.warning("%s", problem)
        self._equipment = Equipment(tuple(added), tuple(problems), loaded)


class Equipment(msgspec.Struct, frozen=True, eq=False):
    """The functions, skills and prompts of the files."""

    tools: tuple[ToolDef, ...] = ()
    problems: tuple[Problem, ...] = ()
    loaded: Loaded | None = None
    """The configuration that it belongs to."""


def gather(loaded: Loaded, scope: Scope) -> Equipment:
    """Load functions, skills and prompts; a broken one affects no other."""
    tools, problems = _functions(loaded, scope)
    folders, about_folders = skill_folders(loaded, scope)
    accepts = skill_gate(loaded)
    skills, about_skills = scan(folders, accepts=accepts)
    if skills:
        tools.append(reading_tool(folders, accepts=accepts))
    problems += about_folders
    problems += (*about_skills, *_prompts(loaded, scope), *_dangling(loaded))
    return Equipment(tuple(tools), tuple(problems), loaded)


def find_skills(loaded: Loaded, scope: Scope) -> Skills:
    """The current skills, by name."""
    return scan(skill_folders(loaded, scope)[0], accepts=skill_gate(loaded))[0]


def skill_gate(loaded: Loaded) -> Accepts:
    """Whether a skill may be read: a project's skill must be as it was trusted."""
    # a skill may be in several projects, one inside the other; each has to accept it
    roots = {seen.source.project for seen in loaded.sources} - {None}

    def accepts(skill: Path) -> bool:
        owners = [root for root in roots if root is not None and skill.is_relative_to(root)]
        return all(
            is_within(skill, root) and loaded.approval.accepts_skill(root, skill) for root in owners
        )

    return accepts


def skill_folders(loaded: Loaded, scope: Scope) -> tuple[list[Path], list[Problem]]:
    """The configured folders, otherwise `skills` beside every file that was read."""
    configured = loaded.settings.environment
    if "skills" not in configured.given_fields:
        files = (seen.source for seen in loaded.sources if seen.found)
        return [file.path.parent / "skills" for file in files if not file.folder], []
    folders: list[Path] = []
    problems: list[Problem] = []
    for folder in configured.skills:
        try:
            folders.append(expand_path(str(folder), scope))
        except ConfigError as exc:
            problems.append(_wrong(str(exc), loaded, "environment.skills", hint=exc.hint))
    return folders, problems


def beside(file: Path) -> Search:
    """A file and the folder of servers next to it."""
    path = Path.cwd() / file.expanduser()
    servers = Source(path=path.parent / FOLDER, folder=True)
    return Search((servers, Source(path=path, required=True)))


def expand_path(path: str, scope: Scope) -> Path:
    """A path with its variables and `~` expanded.

    Raises:
        ConfigError: A variable has no value.
    """
    return locate(expand(path, scope), scope)


def _functions(loaded: Loaded, scope: Scope) -> tuple[list[ToolDef], list[Problem]]:
    tools: list[ToolDef] = []
    problems: list[Problem] = []
    for reference in loaded.settings.environment.tools:
        where, colon, name = reference.rpartition(":")
        try:
            written = str(expand_path(where, scope)) if where.endswith(".py") else where
            tools.append(load_tool(f"{written}{colon}{name}"))
        except ConfigError as exc:
            problems.append(_wrong(str(exc), loaded, "environment.tools", hint=exc.hint))
    return tools, problems


def _prompts(loaded: Loaded, scope: Scope) -> Iterator[Problem]:
    for name, prompt in loaded.settings.prompts.items():
        try:
            prompt_text(prompt, scope)
        except ConfigError as exc:
            yield _wrong(str(exc), loaded, f"prompts.{name}.file", hint=exc.hint)


def _dangling(loaded: Loaded) -> Iterator[Problem]:
    """Problems of prompts that agents and profiles name but cannot use."""
    settings, prompts = loaded.settings, loaded.settings.prompts
    users = {
        **{f"agents.{name}.prompt": agent.prompt for name, agent in settings.agents.items()},
        **{
            f"profiles.{name}.prompt": profile.prompt for name, profile in settings.profiles.items()
        },
    }
    for key, prompt in users.items():
        if prompt is not None and prompt not in prompts:
            hint = did_you_mean(prompt, prompts)
            yield _wrong(f"no prompt named {prompt!r}", loaded, key, hint=hint)
        elif prompt is not None and prompts[prompt].arguments:
            message = f"the prompt {prompt!r} needs arguments, and gets none here"
            yield _wrong(message, loaded, key)


def _wrong(message: str, loaded: Loaded, key: str, *, hint: str | None = None) -> Problem:
    places = {value.key: value.place for value in loaded.explain().values}
    place = places.get(key) or Place(loaded.search.folder)
    return Problem(severity=Severity.ERROR, message=message, place=place, key=key, hint=hint)


def load_tool(reference: str) -> ToolDef:
    """The tool for `module:function` or `path/to/file.py:function`.

    Raises:
        ConfigError: There is none, or it cannot be loaded.
    """
    function = load_function(reference)
    try:
        return ToolDef.of(function)
    except (RuntimeError, NameError, TypeError, AttributeError) as exc:
        reason = str(exc).partition("\n")[0]
        raise ConfigError(f"{reference!r} cannot be a tool: {reason}") from exc


def load_function(reference: str) -> Callable[..., Any]:
    """The function for `module:function` or `path/to/file.py:function`.

    A file runs again each time, so that a reload sees its current content.

    Raises:
        ConfigError: There is none, or its module or file fails to load.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name:
        hint = "`module:function` or `path/to/file.py:function`"
        raise ConfigError(f"{reference!r} does not name a function", hint=hint)
    try:
        module = _run(Path(where)) if where.endswith(".py") else import_module(where)
    except (Exception, SystemExit) as exc:  # boundary: whatever the user's code does
        raise ConfigError(f"{where} cannot be loaded: {type(exc).__name__}: {exc}") from exc
    try:
        function: Any = reduce(getattr, name.split("."), module)
    except AttributeError:
        raise ConfigError(f"{where} has no {name!r}") from None
    if inspect.isroutine(function):
        return function
    raise ConfigError(f"{name!r} in {where} is not a function")


class _UncachedLoader(SourceFileLoader):
    """Loads the current source: compiled files are compared by the second only."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"{path} is not cached")


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    # a name of its own: two files may both be called `tools.py`
    called = f"multitap_functions_{sha256(str(path).encode()).hexdigest()[:12]}"
    loader = _UncachedLoader(called, str(path))
    module = module_from_spec(ModuleSpec(called, loader, origin=str(path)))
    before = sys.modules.get(called)
    sys.modules[called] = module  # string annotations are resolved there
    try:
        loader.exec_module(module)
    except BaseException:
        _restore(called, before)
        raise
    return module


def _restore(name: str, before: ModuleType | None) -> None:
    if before is None:
        del sys.modules[name]
    else:
        sys.modules[name] = before


class _OtherServersTools(HubTools):
    """The tools of all servers except the environment's own server, which repeats them."""

    def _is_shown(self, tool: Tool) -> bool:
        return tool.server != SERVER


class HostedEnvironment(ConfiguredEnvironment):
    """The environment in the files, as a server of its own hub if it has anything to show.

    Clients do not see anything here that is hidden from them elsewhere.
    """

    _recall = True
    _warns = False  # the command that serves it says so itself
    _tools_of = _OtherServersTools

    def __init__(self, loader: Loader, *, audience: Callable[[], Audience]) -> None:
        super().__init__(loader)
        self._audience = audience
        self._handlers = Handlers()
        self._equipped = Bell()

    @cached_property
    def world(self) -> ProfileWorld:
        """The environment as the client whose request is being answered may see it."""
        from multitap.env.world import ProfileWorld  # noqa: PLC0415 - most gateways never need it

        return ProfileWorld(self, self._audience)

    @cached_property
    def _server(self) -> HostedServer:
        from multitap.env.server import HostedServer  # noqa: PLC0415 - the same

        return HostedServer(self)

    @asynccontextmanager
    async def open(
        self, handlers: Handlers, *, place: Placements = local_placements
    ) -> AsyncGenerator[Hub]:
        """Open a hub with it; leaving the block closes both.

        Args:
            handlers: Callbacks for requests of servers.
            place: Where servers run, if not all in this process.
        """
        self._handlers = handlers
        self._place = place
        async with self:
            yield self.hub

    @property
    def answers(self) -> Handlers:
        """Answers sampling requests that the client cannot answer, if others may use the model."""
        return Handlers(sample=self._sample_if_shared, sample_tools=True)

    @property
    def own_tools(self) -> Mapping[str, ToolDef]:
        """Its loaded functions, by name."""
        return {tool.name: tool for tool in self._equipment.tools}

    async def ready(self) -> None:
        """Wait until the functions match the files."""
        # in a loop: the files may change again while their functions are loaded
        while self._equipment.loaded is not self.files.loaded:
            await self._equipped.wait()

    def load_configuration(self) -> Loaded:
        return self._with_server(super().load_configuration())

    def handlers(self) -> Handlers:
        return self._handlers

    def mcp_server_config(self) -> Serve | None:
        return None  # the gateway shows it

    def get_env_id(self) -> str:
        return self.settings.environment.id

    async def _on_open(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self._follow, self.hub)  # nobody waits for slow functions

    async def _equip(self) -> None:
        await super()._equip()
        self._equipped.ring()
        if SERVER in self.settings.servers:
            await self._server.announce_change()

    async def _sample_if_shared(
        self, origin: RequestOrigin, params: types.CreateMessageRequestParams
    ) -> Sampled:
        import mcp_types as types  # noqa: PLC0415 - slow to import

        if self.settings.environment.invoke_llm:
            return await self._sample(origin, params)
        message = "the client cannot sample, and `environment.invoke_llm` is off"
        return types.ErrorData(code=types.METHOD_NOT_FOUND, message=message)

    def _with_server(self, loaded: Loaded) -> Loaded:
        """The configuration with the environment as one more server, if it has anything to show.

        A configured server of that name takes precedence.
        """
        if not shows_something(loaded):
            return loaded
        from multitap.env.protocol import ENV_TOOLS, own_name  # noqa: PLC0415 - as above

        if (configured := loaded.merged.servers.get(SERVER)) is not None:
            problem = Problem(
                severity=Severity.WARNING,
                message="the environment is hidden, because this server has its name",
                place=configured.merge_entries().node.key_place,
                server=SERVER,
                hint="give the server another name",
            )
            return replace(loaded, problems=(*loaded.problems, problem))
        settings = loaded.settings
        protocol = tuple(own_name(tool, settings.naming) for tool in ENV_TOOLS.values())
        server = LocalServer(
            server=self._server.server,
            # its tools may call other servers' tools, which have their own time limits
            timeout=TIMEOUT,
            enabled=settings.enabled,
            on_request=() if shows_protocol_to_all(settings) else protocol,
        )
        servers = {**settings.servers, SERVER: server}
        return replace(loaded, settings=settings.with_servers(servers))


def shows_protocol(settings: Settings) -> bool:
    """Whether any client sees the tools of the protocol: all, or those of a profile."""
    return shows_protocol_to_all(settings) or any(
        profile.environment for profile in settings.profiles.values()
    )


def shows_protocol_to_all(settings: Settings) -> bool:
    """Whether every client sees them, because the configuration describes the environment."""
    return "environment" in settings.given_fields


def shows_something(loaded: Loaded) -> bool:
    """Whether clients see anything of the environment: its tools, its prompts or its skills."""
    settings = loaded.settings
    if shows_protocol(settings) or settings.prompts:
        return True
    return bool(find_skills(loaded, loaded.scope))
