"""A gateway of `multitap serve` as a replica of a cluster."""

import hashlib
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import msgspec

from multitap.config import LocalServer, Settings
from multitap.config.checks import table_of
from multitap.errors import ConfigError
from multitap.hub.hub import Hub

if TYPE_CHECKING:
    from multitap.cluster import replica

_OWN = frozenset({"state_dir", "start_concurrency", "serve"})
"""Settings that may differ from machine to machine."""
DRAIN = 3.5
"""Seconds for calls in progress when a replica leaves; the process has a little longer."""


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a gateway takes part in a cluster."""

    url: str
    """The address of Redis."""
    key_file: Path | None = None
    labels: tuple[str, ...] = ()
    """Each `NAME=VALUE`."""
    advertise: str | None = None
    """`HOST:PORT` where other replicas reach this one."""
    allow_drift: bool = False


@asynccontextmanager
async def open_cluster(
    options: ClusterOptions, settings: Settings
) -> AsyncGenerator["replica.Replica"]:
    """Take part in a cluster until the block is left.

    Raises:
        ConfigError: That is not possible; says why.
    """
    # most gateways run alone
    from multitap.cluster import membership, redis_coordinator, replica  # noqa: PLC0415

    replica_options = replica.ReplicaOptions(
        fingerprint=fingerprint(settings),
        listen=_address(options),
        key=membership.given_key(options.key_file, os.environ),
        labels=parse_labels(options.labels),
        allow_drift=options.allow_drift,
    )
    async with (
        redis_coordinator.open_redis(options.url) as coordinator,
        replica.open_replica(coordinator, replica_options) as joined,
    ):
        joined.apply(settings.servers)
        yield joined


async def follow(joined: "replica.Replica", hub: Hub) -> None:
    """Let the replica know which servers are configured, whenever that changes."""
    applied: Settings | None = None
    while True:
        if hub.settings is not applied:
            applied = hub.settings
            joined.apply(applied.servers)
            joined.membership.describe(fingerprint=fingerprint(applied))
        await hub.changed.wait()


async def drain(joined: "replica.Replica", on_last: Callable[[], None]) -> None:
    """Hand everything over before the process ends; see `Replica.drain`."""
    # usually already cancelled; half a second more to release the leases
    with anyio.CancelScope(shield=True), anyio.move_on_after(DRAIN + 0.5):
        await joined.drain(DRAIN, on_last)


def fingerprint(settings: Settings) -> str:
    """A digest of the settings that all replicas must share; it reveals nothing."""
    # without defaults: a newer version has settings that an older one does not know
    servers = {
        name: (config.transport, table_of(config, "changed"))
        for name, config in settings.servers.items()
        if not isinstance(config, LocalServer)  # created in each process
    }
    shared = {
        key: value
        for key, value in table_of(settings, "changed").items()
        if key not in {*_OWN, "servers"}
    }
    canonical = msgspec.json.encode({**shared, "servers": servers}, order="sorted")
    return hashlib.sha256(b"multitap cluster configuration\n" + canonical).hexdigest()[:16]


def parse_labels(labels_given: tuple[str, ...]) -> dict[str, str]:
    """Labels as a table.

    Raises:
        ConfigError: One is not written as `NAME=VALUE`.
    """
    labels: dict[str, str] = {}
    for label in labels_given:
        name, sign, value = label.partition("=")
        if not name or not sign:
            raise ConfigError(f"{label!r} is not a label", hint="use `--label zone=a`")
        labels[name] = value
    return labels


def _address(options: ClusterOptions) -> str:
    from multitap.cluster import peers  # noqa: PLC0415 - in a cluster only

    if options.advertise is not None:
        host, sign, port = options.advertise.rpartition(":")
        if not sign or not host or not port.isdecimal():
            raise ConfigError(
                f"{options.advertise!r} is not an address for other replicas",
                hint="use `--advertise HOST:PORT`",
            )
        return options.advertise
    scheme, netloc, *_ = urlsplit(options.url)
    # any of several sentinels will do
    place = urlsplit(f"{scheme}://{netloc.rpartition('@')[2].split(',')[0]}")
    try:
        towards = (place.hostname or "127.0.0.1", place.port or 6379)
    except ValueError:
        return "127.0.0.1:0"  # an invalid address is reported when it is used
    return f"{peers.own_address(towards)}:0"
