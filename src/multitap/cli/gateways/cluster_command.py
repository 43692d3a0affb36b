"""`multitap cluster status`: the gateways that act as one, and what each of them runs."""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from multitap.cli.exits import Exit
from multitap.cli.running import run_async
from multitap.cli.terminal.output import complain, note, say_json
from multitap.cli.terminal.tables import table
from multitap.cluster.coordinator import CoordinatorDown
from multitap.cluster.membership import Member, known_members
from multitap.cluster.redis_coordinator import open_redis
from multitap.errors import counted

_LATE = 2.5
"""Seconds without a heartbeat, sent every second, after which a replica may have a problem."""


def cluster_status(url: str, *, as_json: bool) -> int:
    """Show the replicas that the cluster's Redis lists."""
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
                    {**msgspec.to_builtins(one), "lag": round(now - one.seen, 3)} for one in members
                ],
                "owners": {
                    server: [one.id for one in members if server in one.owns]
                    for server in sorted({name for one in members for name in one.owns})
                },
                "drift": len({one.fingerprint for one in members}) > 1,
                "trouble": trouble,
            }
        )
        return Exit.DONE
    if not members:
        note("no replica is in this cluster")
        return Exit.DONE
    # the correct configuration is unknown; the most common one counts as normal
    usual = Counter(one.fingerprint for one in members).most_common(1)[0][0]
    table(
        ("REPLICA", "VERSION", "ADDRESS", "LAG", "RUNS", "NOTE"),
        [
            (
                one.id,
                one.version,
                one.url or one.address,
                f"{max(0.0, now - one.seen):.1f} s",
                ", ".join(one.owns) or "-",
                _note(one, usual),
            )
            for one in members
        ],
        right=("LAG",),
    )
    for words in trouble:
        note(f"warning: {words}")
    return Exit.DONE


async def _look(url: str) -> tuple[float, Sequence[Member]]:
    async with open_redis(url) as coordinator:
        members = await known_members(coordinator.records)
        # Redis's clock, which the heartbeats use
        return await coordinator.time(), sorted(members.values(), key=lambda one: one.id)


def _note(one: Member, usual: str) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in sorted(one.labels.items()))
    notes = (
        "leaving" if one.drains else "",
        "other configuration" if one.fingerprint != usual else "",
        labels,
    )
    return "; ".join(filter(None, notes))


def _trouble(members: Sequence[Member], now: float) -> Iterator[str]:
    if len({one.fingerprint for one in members}) > 1:
        yield "the replicas do not have the same configuration"
    if len({one.version for one in members}) > 1:
        yield "the replicas do not have the same version"
    late = [one.id for one in members if now - one.seen > _LATE]
    if late:
        yield f"{counted(len(late), 'replica')} silent for seconds: {', '.join(late)}"
