"""Repeats a restart that is requested at one replica at all of them."""

from multitap.gateway.replicas.replica_bus import ReplicaBus, ReplicaMessage
from multitap.hub.hub import Hub

_KIND = "restart"


def share_restarts(bus: ReplicaBus, hub: Hub) -> None:
    """Announce restarts to the other replicas, and repeat theirs.

    The program may run on any of them, and each has a connection of its own to a remote server.
    """

    async def follow(note: ReplicaMessage) -> None:
        link = hub.links.get(note.data.decode())
        # it may be unknown or disabled here, while a changed configuration is rolled out
        if link is not None and link.config.enabled:
            link.restart()

    bus.on(_KIND, follow)
    hub.on_restart = lambda server: bus.tell_all_soon(_KIND, server.encode())
