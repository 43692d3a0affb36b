"""An environment built from configuration files alone."""

import logging
from collections.abc import Iterator
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Self

from anyio import to_thread
from anyio.abc import TaskGroup

from multitap.agent.prompts import text_of
from multitap.agent.skills import Accepts, Skills, overview, reading_tool, scan
from multitap.config import (
    Loaded,
    Place,
    Problem,
    Scope,
    Search,
    Severity,
    Source,
    Surroundings,
    native,
)
from multitap.config.owners import is_within
from multitap.config.problems import did_you_mean
from multitap.config.scope import expand, locate
from multitap.config.search import FOLDER
from multitap.env.configured_functions import load_tool
from multitap.env.environment import BaseEnvironment
from multitap.errors import ConfigError, MultitapError
from multitap.hub.hub import Hub
from multitap.hub.reload import Loader
from multitap.records import dataclass
from multitap.tools import ToolDef
from multitap.trust.projects.trusted_projects import load_trusted

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
        self._read = partial(load_trusted, files) if isinstance(files, Search) else files
        self._equipment = Equipment()

    @classmethod
    def load(cls, path: Path | str | None = None) -> Self:
        """Read this file, and `mcpservers/` and `skills/` beside it; by default, our own files.

        A file that is named here needs no further trust.

        Raises:
            ConfigError: The file cannot be read.
        """
        environment = cls(beside(Path(path)) if path else native(Surroundings.here()))
        environment.servers.files.loaded.check()
        return environment

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the files, and of the functions, skills and prompts they name."""
        return (*super().problems, *self._equipment.problems)

    @property
    def skills(self) -> Skills:
        """The current skills, by name."""
        return find_skills(self.servers.files.loaded, self.servers.scope)

    def briefing(self) -> str:
        """The skills, for every agent's system prompt."""
        return overview(self.skills)

    def load_configuration(self) -> Loaded:
        """Read all files again."""
        return self._read()

    async def _on_open(self, tasks: TaskGroup) -> None:
        await self._equip()
        tasks.start_soon(self._follow, self.hub)
        await super()._on_open(tasks)

    async def _follow(self, hub: Hub) -> None:
        """Whenever the files are read again, load their functions, skills and prompts again."""
        with hub.events.subscribe(calls=False) as events:
            while True:
                # compared before waiting: they may have been read again before we subscribed
                if self._equipment.loaded is not self.servers.files.loaded:
                    await self._equip()
                await anext(events)

    async def _equip(self) -> None:
        loaded, scope = self.servers.files.loaded, self.servers.scope
        # Importing functions runs the user's code, which may be slow.
        found = await to_thread.run_sync(gather, loaded, scope, abandon_on_cancel=True)
        # old ones first: the name of a function that stays must be free
        for tool in self._equipment.tools:
            self.registry.unregister(tool.name)
        added: list[ToolDef] = []
        problems = [*found.problems]
        for tool in found.tools:
            try:
                self.registry.register(tool)
            except MultitapError as exc:
                problems.append(_wrong(str(exc), loaded, "environment.tools"))
            else:
                added.append(tool)
        for problem in problems:
            logger.warning("%s", problem)
        self._equipment = Equipment(tuple(added), tuple(problems), loaded)


@dataclass(frozen=True, slots=True)
class Equipment:
    """The functions, skills and prompts of the files."""

    tools: tuple[ToolDef, ...] = ()
    problems: tuple[Problem, ...] = ()
    loaded: Loaded | None = field(default=None, repr=False)
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
    said = loaded.settings.environment
    if "skills" not in said.model_fields_set:
        files = (seen.source for seen in loaded.sources if seen.found)
        return [file.path.parent / "skills" for file in files if not file.folder], []
    folders: list[Path] = []
    problems: list[Problem] = []
    for folder in said.skills:
        try:
            folders.append(expand_path(str(folder), scope))
        except ConfigError as exc:
            problems.append(_wrong(str(exc), loaded, "environment.skills", hint=exc.hint))
    return folders, problems


def beside(file: Path) -> Search:
    """A file and the folder of servers next to it."""
    path = Path.cwd() / file.expanduser()
    servers = Source(path.parent / FOLDER, folder=True)
    return Search((servers, Source(path, required=True)))


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
            text_of(prompt, scope)
        except ConfigError as exc:
            yield _wrong(str(exc), loaded, f"prompts.{name}.file", hint=exc.hint)


def _dangling(loaded: Loaded) -> Iterator[Problem]:
    """Problems of prompts that agents and profiles name but cannot use."""
    settings, prompts = loaded.settings, loaded.settings.prompts
    users = {
        **{f"agents.{name}.prompt": agent.prompt for name, agent in settings.agents.items()},
        **{f"profiles.{name}.prompt": one.prompt for name, one in settings.profiles.items()},
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
    return Problem(Severity.ERROR, message, place, key, hint=hint)
