"""`multitap sandbox`: shows what a confined server may use, and what it needs."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from multitap.cli.change.entries import Assignment, assign
from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration, require
from multitap.cli.options import (
    CommandGroup,
    CommonOptions,
    EditOptions,
    config_options,
    dry_run_option,
    json_option,
    project_options,
)
from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit, note, say, say_json
from multitap.config import Loaded, ServerConfig, StdioServer
from multitap.config.edit.toml_edit import to_toml
from multitap.config.provenance import Level
from multitap.errors import CannotStart, ConfigError, MultitapError
from multitap.events import LinkState
from multitap.hub.hub import Hub, open_hub
from multitap.sandbox.learning import LearnedRules, learn_rules
from multitap.sandbox.levels import Confinement, confinement_of, support_here
from multitap.sandbox.places import PrivatePaths
from multitap.sandbox.plan import SandboxPlan
from multitap.sandbox.sandboxes import UsedPaths, open_sandboxes, plan_here
from multitap.trust.projects import Projects, expand_trusted
from multitap.wire.process import child_environment, open_spawner
from multitap.wire.stdio import locate, open_stdio
from multitap.wire.wire import Wire

_OPEN = {"read": "everything that is not private", "hosts": "every host"}
"""What needs no rule under `guard`."""
ROUNDS = 5
"""How often a server is started to learn: a refusal may prevent later accesses."""


@click.group(cls=CommandGroup)
def sandbox() -> None:
    """Choose how strictly a server is confined, and what it may use"""


@sandbox.command("show")
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@config_options
@json_option
def show_sandbox(options: CommonOptions, name: str, *, as_json: bool) -> int:
    """Show whether a server is confined, and everything that it may use"""
    loaded = load_configuration(options)
    config = _program(loaded, name)
    plan, confinement = _plan(loaded, name, _expand(loaded, name, config))
    if as_json:
        say_json(
            {
                "name": name,
                **msgspec.structs.asdict(confinement),
                **_describe(plan),
                "proc": plan.proc,
            }
        )
        return Exit.DONE
    if confinement.confined:
        say(f"{name} runs under `{confinement.level}`: {confinement.reason}")
    else:
        say(f"{name} is not confined: {confinement.reason}")
        say(f"under `{plan.level}`, it could use:")
    for title, values in _describe(plan).items():
        say(f"\n{title}:")
        if plan.level != "strict" and title in _OPEN:
            say(f"  {_OPEN[title]}")
            continue
        for value in [values] if isinstance(values, str) else values or ["(none)"]:
            say(f"  {value}")
    if plan.proc:
        say("\nall its processes may read their own /proc/self")
    for path in plan.refused:
        note(f"the rule for {path} opens nothing: it is private, and no rule opens it")
    return Exit.DONE


@sandbox.command("learn")
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@click.option(
    "--call",
    "calls",
    multiple=True,
    metavar="TOOL={JSON}",
    help="Also call this tool, by the server's own name (repeatable)",
)
@click.option("--dry-run", is_flag=True, help="Print the rules, and write nothing")
@project_options
@json_option
def learn_sandbox(
    options: CommonOptions, name: str, calls: Sequence[str], *, dry_run: bool, as_json: bool
) -> int:
    """Start a server under observation, and write the rules that it needs

    While learning, it can read everything that is not private, and reach every host.
    """
    loaded = load_configuration(options)
    _program(loaded, name)
    if (reason := support_here().reason) is not None:
        raise MultitapError(reason, hint="nothing can be learned on this machine")
    note(f"starting {name} with access to every host and to all files that are not private")
    learned, trouble = run_async(lambda: _learn(loaded, name, _calls(calls)))
    rules = _written(learned)
    if as_json:
        say_json({"name": name, "rules": rules, "private": learned.private, "trouble": trouble})
    for path in learned.private:
        note(f"it wanted {path}, which is private: no rule opens it")
    if trouble is not None:
        note(f"it still does not come up: {trouble}")
    if not rules:
        note("it needs no more rules than it has")
    elif not as_json:
        # the rules of a server that does not come up are shown, but may not be all of them
        _keep(options, loaded, name, learned, dry_run=dry_run or trouble is not None)
    return Exit.DONE if trouble is None else Exit.UNAVAILABLE


@sandbox.command("allow")
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@click.argument("hosts", nargs=-1, metavar="[HOST...]")
@click.option("--read", multiple=True, metavar="PATH", help="Let it read this (repeatable)")
@click.option("--write", multiple=True, metavar="PATH", help="Let it change this (repeatable)")
@dry_run_option
@config_options
def allow(
    options: CommonOptions,
    name: str,
    hosts: Sequence[str],
    *,
    read: Sequence[str],
    write: Sequence[str],
    dry_run: bool,
) -> int:
    """Let a confined server use more hosts, files and folders

    HOST is a name, '*.name', an address or a network, with a port, or without
    one for ports 80 and 443; '*' is every public host. Hosts matter only under
    'strict': 'guard' leaves the network open.
    """
    if not (hosts or read or write):
        raise click.UsageError("name a host, or use `--read` or `--write`")
    loaded = load_configuration(options)
    _program(loaded, name)
    rules = LearnedRules(
        read=tuple(map(_absolute, read)), write=tuple(map(_absolute, write)), hosts=tuple(hosts)
    )
    private = PrivatePaths.of_user(Path.home().resolve(), loaded.state_directory)
    for path in (*rules.read, *rules.write):
        if not private.openable(path):
            raise ConfigError(
                f"{path} is private: no rule opens it",
                hint=f"`multitap sandbox set {name} off` starts {name} without a sandbox",
            )
    return _keep(options, loaded, name, rules, dry_run=dry_run)


@sandbox.command("set")
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@click.argument("level", type=click.Choice(["guard", "strict", "off"]))
@dry_run_option
@config_options
def set_level(options: CommonOptions, name: str, level: Level, *, dry_run: bool) -> int:
    """Choose how strictly a server is confined

    'guard' closes private places: keys, credentials, browsers, Multitap's own
    data. 'strict' closes everything that its rules do not open. 'off' does not
    confine it.
    """
    loaded = load_configuration(options)
    _program(loaded, name)
    if (root := loaded.project_of(name)) is None:
        level_only = [Assignment(("sandbox",), level)]
        return assign(options, name, level_only, EditOptions(dry_run=dry_run))
    if not dry_run:
        Projects().set_level(root, name, level)
    how = "without a sandbox" if level == "off" else f"under `{level}`"
    note(f"{name} runs {how} from its next start; the project's files stay as they are")
    return Exit.DONE


def _written(rules: LearnedRules) -> dict[str, Any]:
    """Rules as a file has them."""
    return {
        key: value
        for key, value in msgspec.structs.asdict(rules).items()
        if value and key != "private"
    }


def _absolute(path: str) -> str:
    """A rule counts wherever the server is started from."""
    return str(Path(path).expanduser().absolute())


def _keep(
    options: CommonOptions,
    loaded: Loaded,
    name: str,
    rules: LearnedRules,
    *,
    dry_run: bool = False,
) -> int:
    """Add rules where the server is described, or beside the trust in the project that does."""
    say(to_toml({"servers": {name: {"sandbox_rules": _written(rules)}}}))
    if (root := loaded.project_of(name)) is not None:
        if not dry_run:
            Projects().allow(root, name, rules)
            note(f"{name} may use that from its next start; the project's files stay as they are")
        return Exit.DONE
    own = _program(loaded, name).sandbox_rules
    assignments = [Assignment(("sandbox_rules", "proc"), True)] if rules.proc else []
    for key in ("read", "write", "hosts"):
        before = [str(value) for value in getattr(own, key)]
        if added := [*dict.fromkeys((*before, *getattr(rules, key)))][len(before) :]:
            assignments.append(Assignment(("sandbox_rules", key), [*before, *added]))
    if not assignments:
        note("it has these rules already")
        return Exit.DONE
    return assign(options, name, assignments, EditOptions(dry_run=dry_run))


async def _learn(
    loaded: Loaded, name: str, calls: Sequence[tuple[str, Any]]
) -> tuple[LearnedRules, str | None]:
    config = _program(loaded, name)
    _, confinement = _plan(loaded, name, _expand(loaded, name, config))
    level: Level = "guard" if confinement.level in {"guard", "container"} else "strict"
    total, trouble = LearnedRules(), None
    for _ in range(ROUNDS):
        widen = partial(_widen, rules=total, level=level)
        lacking, trouble = await _observe(loaded, name, widen, calls)
        grown = total.join(lacking)
        # nothing new was used, so another start would not help
        if grown == total:
            if trouble is None or total.proc:
                break
            # the last resort, because it slows down all file accesses of the server
            grown = msgspec.structs.replace(total, proc=True)
        total = grown
    # `/proc` did not help, so no rule opens it
    return (total if trouble is None else msgspec.structs.replace(total, proc=False)), trouble


async def _observe(
    loaded: Loaded,
    name: str,
    widen: Callable[[StdioServer], StdioServer],
    calls: Sequence[tuple[str, Any]],
) -> tuple[LearnedRules, str | None]:
    """The needs of one start, and why it failed, if it did."""
    config, used = _program(loaded, name), UsedPaths()
    # once: a restart would mix the accesses of two starts
    alone = config.replace(enabled=True, start="eager", reconnect=False)
    settings = loaded.settings.with_servers({name: alone})
    state = loaded.state_directory

    def expand(_: str, server: ServerConfig) -> StdioServer:
        # afterwards: a project's own file could not open what is outside its folder
        return widen(_expand(loaded, name, server))

    async with open_spawner() as spawner, open_sandboxes(state, learned=used) as sandboxes:

        def dial(_: str, server: ServerConfig) -> AbstractAsyncContextManager[Wire]:
            assert isinstance(server, StdioServer)  # noqa: S101 - the only one there is
            return open_stdio(name, server, spawner, sandboxes=sandboxes)

        async with open_hub(settings, dial=dial, expand=expand) as hub:
            with anyio.move_on_after(config.connect_timeout):
                await hub.settled()
            for raw_name, arguments in calls:
                for tool in hub.catalog.tools.values():
                    if tool.raw_name == raw_name:
                        note(f"called {raw_name}: {await _outcome(hub, tool.name, arguments)}")
            server = hub.snapshot().server(name)
        hosts = [reached.host for reached in sandboxes.state_of(name, config).hosts]
    failure = None if server.state is LinkState.CONNECTED else str(server.failure or server.state)
    expanded = expand(name, config)
    plan, _ = _plan(loaded, name, expanded)
    rules = learn_rules(
        plan,
        PrivatePaths.of_user(Path.home().resolve(), state),
        read=used.read,
        changed=used.changed,
        hosts=hosts,
        arguments=expanded.args,
        home=Path.home().resolve(),
    )
    return rules, failure


async def _outcome(hub: Hub, name: str, arguments: Any) -> str:
    """The outcome of a call; accesses are learned even if it fails."""
    try:
        result = await hub.call(name, arguments)
    except MultitapError as exc:
        return str(exc)
    return "done" if result.success else result.text[:200]


def _widen(expanded: StdioServer, *, rules: LearnedRules, level: Level) -> StdioServer:
    wider = expanded.sandbox_rules.widen(rules.as_settings())
    widened = expanded.replace(sandbox=level, sandbox_rules=wider)
    # a level that a person chose for a project's server would count more than this one
    return widened.at_home(msgspec.structs.replace(expanded.home, level=None))


def _expand(loaded: Loaded, name: str, config: ServerConfig) -> StdioServer:
    expanded = expand_trusted(loaded, name, config)
    assert isinstance(expanded, StdioServer)  # noqa: S101 - what it was before
    return expanded


def _plan(loaded: Loaded, name: str, expanded: StdioServer) -> tuple[SandboxPlan, Confinement]:
    """What a server may use, or could if it were confined; and how much it is confined."""
    env = child_environment(os.environ, expanded.env)
    try:
        program = locate(expanded.command, env, expanded.start_folder)
    except CannotStart as exc:
        raise ConfigError(f"{name!r}: {exc}", hint=exc.hint) from None
    confinement = confinement_of(expanded, support_here(), loaded.settings.sandbox, program=program)
    level = confinement.level if confinement.confined else "guard"
    plan = plan_here(loaded.state_directory, name, expanded, program, env, level=level)
    return plan, confinement


def _program(loaded: Loaded, name: str) -> StdioServer:
    require(loaded, name)
    config = loaded.settings.servers[name]
    if not isinstance(config, StdioServer):
        raise ConfigError(f"{name!r} is not a program of this machine: nothing confines it")
    return config


def _describe(plan: SandboxPlan) -> dict[str, Any]:
    return {
        "folder": str(plan.folder),
        "read": [*plan.read],
        "write": [*plan.write],
        "hosts": [*plan.hosts],
    }


def _calls(texts: Sequence[str]) -> list[tuple[str, Any]]:
    calls: list[tuple[str, Any]] = []
    for word in texts:
        tool, _, arguments = word.partition("=")
        try:
            calls.append((tool, json.loads(arguments or "{}")))
        except ValueError:
            raise click.BadParameter(f"expected TOOL={{JSON}}, not {word!r}") from None
    return calls
