"""Commands about gateways: one that serves, and those that run.

In: options of `serve`, `reload`, `restart` and `stats`. Out: a gateway until it is stopped, or what
a running one says. `running_gateways` finds those by their control sockets, for all commands. It
must not know what clients and servers say to each other.
"""
