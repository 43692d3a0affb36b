"""Replicas in one process: each a hub with connections of its own, on one coordinator."""

from contextlib import asynccontextmanager
from dataclasses import dataclass

from multitap import Handlers, Settings, StdioServer
from multitap.cluster.replica import Replica, ReplicaOptions, open_replica
from multitap.hub.hub import Hub, open_hub
from tests.zoo.modes import command

KEY = b"k" * 32


def zoo(mode="good", *options, env=None, **settings):
    program, *args = command(mode, *options)
    return StdioServer(command=program, args=tuple(args), env=env or {}, **settings)


@dataclass
class Node:
    replica: Replica
    hub: Hub

    def owns(self, server):
        return self.replica.ownership.lease(server) is not None


@asynccontextmanager
async def open_node(
    coordinator, folder, *, name, servers, handlers=Handlers(), labels=None, fingerprint="same"
):
    """A replica and its hub; `folder` has its socket and its state."""
    options = ReplicaOptions(
        fingerprint=fingerprint,
        listen=f"unix:{folder}/{name}.sock",
        key=KEY,
        labels=labels,
        is_fresh=True,
        id=name,
    )
    settings = Settings(servers=servers, state_dir=folder / name)
    async with (
        open_replica(coordinator, options) as replica,
        open_hub(settings, handlers=handlers, place=replica.place) as hub,
    ):
        replica.attach(lambda: hub.links)
        replica.apply(settings.servers)
        yield Node(replica, hub)


async def pair(nodes, server):
    """The one that owns a server, and another one, both connected."""
    for node in nodes:
        await node.hub.settled()
    owner = next(node for node in nodes if node.owns(server))
    return owner, next(node for node in nodes if node is not owner)
