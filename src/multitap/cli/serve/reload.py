"""`multitap reload`, `restart` and `stop`: control a running gateway."""

import os
import signal
import time

import click

from multitap.cli import configuration
from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration
from multitap.cli.options import CommonOptions, gateway_options, json_option, live_option
from multitap.cli.target import (
    RunningGateway,
    choose_gateway,
    matching,
    nobody_serves,
)
from multitap.cli.terminal import Exit, complain, note, say, say_json
from multitap.config import Loaded
from multitap.config.problems import did_you_mean, serious
from multitap.config.sources import state_directory
from multitap.control.joining import JoinReply, replace_gateway, running_gateways
from multitap.control.messages import ReloadReport
from multitap.control.places import sockets
from multitap.errors import UnknownName

_STOPPING = 10.0
"""Seconds for a gateway and its servers to end."""
_LOOK = 0.05


@click.command()
@gateway_options
@json_option
def reload(options: CommonOptions, *, as_json: bool) -> int:
    """Reload the configuration of running gateways

    Reloads every gateway that has the same configuration files as this command.
    """
    loaded = load_configuration(options)
    running = matching(options, loaded)
    reports = [(live, live.reload()) for live in running]
    if as_json:
        say_json([_for_programs(live, report) for live, report in reports])
    else:
        for live, report in reports:
            _show(live, report, loaded)
        if options.pid is None:
            configuration.show_problems(serious(loaded.problems))
    # a gateway chosen by its pid may have other files than this command
    ours = loaded.errors if options.pid is None else ()
    if ours or any(report.kept or not report.taken for _, report in reports):
        return Exit.CONFIG
    if any(report.missing_workers for _, report in reports):
        return Exit.FAILED
    return Exit.DONE if running else nobody_serves()


@click.command()
@click.argument("server", required=False, shell_complete=complete_server)
@gateway_options
def restart(options: CommonOptions, server: str | None) -> int:
    """Restart a server of the running gateway, or the gateway itself

    Without a name, replace the gateway in the background: calls in progress end as usual, and
    its clients continue with the new one.
    """
    if server is None:
        running = running_gateways()
        for place, reply in running.items():
            if reply.host:
                return _is_hosted(reply)
            new = replace_gateway(place)
            by = f"the gateway with pid {new.pid}" if new else "the next one of its clients"
            note(f"{by} takes over from the gateway with pid {reply.pid}")
        return Exit.DONE if running else _nothing_in_background()
    live = choose_gateway(options, load_configuration(options))
    if live is None:
        return nobody_serves()
    names = [server_.name for server_ in live.state().snapshot.servers]
    if server not in names:
        hint = did_you_mean(server, names) or "`multitap status` lists all servers"
        raise UnknownName(f"the gateway has no server named {server!r}", hint=hint)
    live.restart(server)
    note(f"restarting {server}; `multitap status` shows how it goes")
    return Exit.DONE


@click.command()
@live_option
def stop(pid: int | None) -> int:
    """Stop the gateway in the background

    Its servers end with it. Clients that are still open start it again with their next request.
    """
    if pid is not None:
        # no other process may get a signal, whatever pid was typed
        if pid not in sockets(state_directory()).values():
            raise UnknownName(f"no gateway runs with pid {pid}")
        return _stop(pid)
    running = running_gateways().values()
    for reply in running:
        if reply.host:
            return _is_hosted(reply)
    exits = [_stop(reply.pid) for reply in running]
    return max(exits) if exits else _nothing_in_background()


def _stop(pid: int) -> Exit:
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOPPING
    while _is_running(pid):
        if time.monotonic() >= deadline:
            complain(f"the gateway with pid {pid} is still stopping")
            return Exit.FAILED
        # polled: it is not our child, so nothing tells us when it ends
        time.sleep(_LOOK)
    note(f"stopped the gateway with pid {pid}")
    return Exit.DONE


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_hosted(gateway: JoinReply) -> Exit:
    complain(
        f"the gateway with pid {gateway.pid} serves {gateway.host}, too",
        f"stop it where it was started, or use `multitap stop --live {gateway.pid}`",
    )
    return Exit.UNAVAILABLE


def _nothing_in_background() -> Exit:
    complain(
        "no gateway runs in the background",
        "a client starts it; Ctrl-C stops `multitap serve --http`",
    )
    return Exit.UNAVAILABLE


def _show(live: RunningGateway, report: ReloadReport, loaded: Loaded) -> None:
    who = f"pid {live.about.pid}"
    if report.taken:
        say(f"{who}: {report.plan}")
    else:
        complain(f"{who}: the files cannot be read; nothing is changed")
    if report.kept:
        note(f"{who}: {', '.join(report.kept)} unchanged: the new configuration cannot be used")
    if report.gap:
        complain(f"{who}: {report.gap}")
    # the problems of our own files are shown once, and not for each gateway
    if not live.runs(loaded):
        for problem in report.problems:
            note(problem)


def _for_programs(live: RunningGateway, report: ReloadReport) -> dict[str, object]:
    return {
        "gateway": live.about.pid,
        "taken": report.taken,
        "plan": report.plan,
        "problems": list(report.problems),
        "kept": list(report.kept),
        "missing_workers": report.missing_workers,
    }
