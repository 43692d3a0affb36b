"""The configuration that a person asked for."""

import shlex

from multitap.cli.configuration.problem_lines import line
from multitap.cli.configuration.typed_server import typed_configuration
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import advise, note
from multitap.config import Loaded, Surroundings, load
from multitap.config.hosts import host_files
from multitap.config.problems import did_you_mean
from multitap.config.seed_files import SeedFile, at_prompt, several_environments
from multitap.errors import ConfigError, UnknownName


def load_configuration(options: CommonOptions) -> Loaded:
    """What the files say, or what was typed in their place.

    Raises:
        ConfigError: There is no dialect of the name that was given.
    """
    if options.typed is not None:
        return typed_configuration(options.typed)
    where = Surroundings.here()
    wanted, seeds = at_prompt(where, options.files, dialect=options.dialect)
    _mention(where, seeds)
    return load(wanted)


def _mention(where: Surroundings, seeds: tuple[SeedFile, ...]) -> None:
    """Say which file of another design is read, since nobody named it."""
    if seeds:
        note(f"reading {seeds[0].path.relative_to(where.folder)} as {seeds[0].title} does")
    for other in seeds[1:]:
        path = other.path.relative_to(where.folder)
        note(f"{path} is left alone; `--config {path}` reads it")
    if not seeds and several_environments(where):
        note("there are several environments; `--config environments/NAME/config.jsonc` reads one")


def require(loaded: Loaded, name: str) -> None:
    """Make sure that a server of that name can be used.

    Raises:
        UnknownName: No file says anything about it.
        ConfigError: What they say cannot be used.
    """
    if name in loaded.settings.servers:
        return
    if problems := loaded.broken.get(name):
        raise ConfigError(line(problems[0]), hint=problems[0].hint)
    near = did_you_mean(name, loaded.merged.servers)
    raise UnknownName(
        f"no server named {name!r}",
        hint=" ".join(filter(None, (near, "`multitap status` lists what there is"))),
    )


def explain_emptiness(loaded: Loaded) -> None:
    """Say what to do when no file names a server; one that cannot be read may name some."""
    if loaded.merged.servers or loaded.errors:
        return
    looked = ", ".join(str(seen.source.path) for seen in loaded.sources if not seen.source.folder)
    note(f"no servers are configured; looked in {looked}")
    others = host_files(Surroundings.here())
    here = [one for one in others if not one.trusted]  # in this folder, so likely what is meant
    path = shlex.quote(str((here or others)[0].path)) if others else "FILE"
    advise(f"`multitap --config {path} status` reads the file of any MCP host")
