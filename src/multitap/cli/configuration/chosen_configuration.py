"""Loads the configuration that the command line asks for."""

from collections.abc import Callable, Sequence
from pathlib import Path

from multitap.cli.configuration.problem_lines import line
from multitap.cli.configuration.typed_server import configuration_of
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import advise, note
from multitap.cli.terminal.typed_lines import is_somebody_there
from multitap.config import Loaded, Pending, Surroundings
from multitap.config.hosts import host_files
from multitap.config.problems import did_you_mean
from multitap.config.seed_files import at_prompt, several_environments
from multitap.config.trust_gate import TrustState, trust_hint
from multitap.errors import ConfigError, UnknownName
from multitap.trust.projects.trusted_projects import Projects, load_trusted

_NAMED = 5


def configuration_loader(options: CommonOptions) -> Callable[[], Loaded]:
    """A function that reads the files again on each call."""
    # outside `read`: with `--trust`, a reload must not trust later changes
    projects = Projects(trust_now=options.trust)

    def read() -> Loaded:
        wanted, _ = at_prompt(Surroundings.here(), options.files, dialect=options.dialect)
        return load_trusted(wanted, projects=projects)

    return read


def load_configuration(options: CommonOptions) -> Loaded:
    """The configuration of the files or the typed server.

    Before that, a person at a terminal is asked about untrusted parts that the command would use;
    otherwise, a note says what is not used.

    Raises:
        ConfigError: There is no dialect of that name.
    """
    if options.typed is not None:
        return configuration_of(options.typed)
    announce_seeds(options)
    read = configuration_loader(options)
    loaded = read()
    if options.asks and offer_trust(loaded):
        options.clock.restart()
        loaded = read()
        from multitap.cli.gateways.running_gateways import hand_over  # noqa: PLC0415 - rarely needed

        hand_over(options, loaded)
    announce_pending(loaded.pending)
    return loaded


def offer_trust(loaded: Loaded) -> bool:
    """Ask a person at a terminal about untrusted parts; returns whether any are trusted now."""
    if not loaded.pending or not is_somebody_there():
        return False
    from multitap.cli.guarding.trust_command import ask_in_place  # noqa: PLC0415 - rarely needed

    return ask_in_place(loaded)


def announce_seeds(options: CommonOptions) -> None:
    """Report which file of another design is read, because nobody named it."""
    where = Surroundings.here()
    _, seeds = at_prompt(where, options.files, dialect=options.dialect)
    if seeds:
        note(f"reading {seeds[0].path.relative_to(where.folder)} as {seeds[0].title} does")
    for other in seeds[1:]:
        path = other.path.relative_to(where.folder)
        note(f"{path} is left alone; `--config {path}` reads it")
    if not seeds and several_environments(where):
        note("there are several environments; `--config environments/NAME/config.jsonc` reads one")


def announce_pending(pending: Sequence[Pending]) -> None:
    """Report untrusted parts in one line."""
    for root in dict.fromkeys(part.root for part in pending):
        changed, new = _of(root, pending, TrustState.CHANGED), _of(root, pending, TrustState.NEW)
        parts = (
            f"{_list_pending(new)} of {root} {_verb(new)} not trusted and {_verb(new)} not used"
            if new
            else "",
            f"{_list_pending(changed)} of {root} changed since you trusted {_it(changed)}"
            if changed
            else "",
        )
        note(f"{'; '.join(filter(None, parts))}: {trust_hint(root)}")


def _of(root: Path, pending: Sequence[Pending], standing: TrustState) -> list[Pending]:
    return [part for part in pending if part.root == root and part.standing is standing]


def _list_pending(pending: Sequence[Pending]) -> str:
    names = [
        f"{part.kind} {part.name}".strip() + (" (instead of yours)" if part.replaces else "")
        for part in pending
    ]
    shown, more = names[:_NAMED], len(names) - _NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _verb(pending: Sequence[Pending]) -> str:
    return "is" if len(pending) == 1 and pending[0].kind != "settings" else "are"


def _it(pending: Sequence[Pending]) -> str:
    return "it" if _verb(pending) == "is" else "them"


def require(loaded: Loaded, name: str) -> None:
    """Make sure that a server of that name can be used.

    Raises:
        UnknownName: No file mentions it.
        Untrusted: It comes with a project that is not trusted.
        ConfigError: Its entry cannot be used, or a file cannot be read.
    """
    if name in loaded.settings.servers:
        return
    if pending := loaded.held.get(name):
        raise pending.refusal()
    if problems := loaded.broken.get(name):
        raise ConfigError(line(problems[0]), hint=problems[0].hint)
    # a file that cannot be read may be the one that names it
    loaded.check()
    near = did_you_mean(name, loaded.merged.servers)
    raise UnknownName(
        f"no server named {name!r}",
        hint=" ".join(filter(None, (near, "`multitap status` lists all servers"))),
    )


def explain_emptiness(loaded: Loaded) -> None:
    """Say what to do when no file names a server; one that cannot be read may name some."""
    if loaded.merged.servers or loaded.errors:
        return
    looked = ", ".join(str(seen.source.path) for seen in loaded.sources if not seen.source.folder)
    note(f"no servers are configured; looked in {looked}")
    others = host_files(Surroundings.here())
    here = [file.path.name for file in others if file.project]  # probably intended
    if here:
        # never `--config`: a stranger may have written it, and that would trust it unseen
        advise(
            f"`multitap import --project` collects {here[0]} in `multitap.toml`, for you to trust"
        )
    elif others:
        advise("`multitap import` brings in the servers of your other MCP clients")
    else:
        advise(
            "`multitap import` brings in those of other clients, `multitap add NAME -- COMMAND`"
            " adds one, `multitap search WORD` finds some"
        )
