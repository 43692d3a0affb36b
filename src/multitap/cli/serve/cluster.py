"""`multitap cluster status`: the gateways that act as one, and what each of them runs."""

from collections import Counter
from collections.abc import Iterator, Sequence

import click
import msgspec

from multitap.cli.options import CommandGroup, json_option
from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit, complain, note, say_json, table
from multitap.cluster.membership import Member, known_members
from multitap.cluster.redis_coordinator import open_redis
from multitap.errors import CoordinatorDown, counted

_LATE = 2.5
"""Seconds without a heartbeat, sent every second, after which a replica may have a problem."""


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Show the gateways of a cluster"""


@cluster.command("status")
@click.option(
    "--cluster",
    "url",
    metavar="URL",
    required=True,
    envvar="MULTITAP_CLUSTER",
    help="The Redis that they share  [env: MULTITAP_CLUSTER]",
)
@json_option
def cluster_status(url: str, *, as_json: bool) -> int:
    """Show the replicas, their versions, what each one runs, and what is wrong"""
    try:
        now, members = run_async(lambda: _look(url))
    except CoordinatorDown as exc:
        complain(str(exc), "check `--cluster`, and that Redis runs")
        return Exit.UNAVAILABLE
    trouble = [*_trouble(members, now)]
    if as_json:
        say_json(
            {
                "replicas": [
                    {**msgspec.to_builtins(member), "lag": round(now - member.seen, 3)}
                    for member in members
                ],
                "owners": {
                    server: [member.id for member in members if server in member.owns]
                    for server in sorted({name for member in members for name in member.owns})
                },
                "drift": len({member.fingerprint for member in members}) > 1,
                "trouble": trouble,
            }
        )
        return Exit.DONE
    if not members:
        note("this cluster has no replicas")
        return Exit.DONE
    # the correct configuration is unknown; the most common one counts as normal
    usual = Counter(member.fingerprint for member in members).most_common(1)[0][0]
    table(
        ("REPLICA", "VERSION", "ADDRESS", "LAG", "RUNS", "NOTE"),
        [
            (
                member.id,
                member.version,
                member.url or member.address,
                f"{max(0.0, now - member.seen):.1f} s",
                ", ".join(member.owns) or "-",
                _note(member, usual),
            )
            for member in members
        ],
        right=("LAG",),
    )
    for warning in trouble:
        note(f"warning: {warning}")
    return Exit.DONE


async def _look(url: str) -> tuple[float, Sequence[Member]]:
    async with open_redis(url) as coordinator:
        members = await known_members(coordinator.records)
        # Redis's clock, which the heartbeats use
        return await coordinator.time(), sorted(members.values(), key=lambda member: member.id)


def _note(member: Member, usual: str) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in sorted(member.labels.items()))
    notes = (
        "leaving" if member.drains else "",
        "other configuration" if member.fingerprint != usual else "",
        labels,
    )
    return "; ".join(filter(None, notes))


def _trouble(members: Sequence[Member], now: float) -> Iterator[str]:
    if len({member.fingerprint for member in members}) > 1:
        yield "the replicas do not have the same configuration"
    if len({member.version for member in members}) > 1:
        yield "the replicas do not have the same version"
    late = [member.id for member in members if now - member.seen > _LATE]
    if late:
        yield f"{counted(len(late), 'replica')} silent for seconds: {', '.join(late)}"
