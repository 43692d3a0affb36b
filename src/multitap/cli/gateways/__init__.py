"""Commands about gateways: serve one, or talk to running ones.

In: the options of `serve`, `reload`, `restart`, `stats` and others. Out: a gateway until it is
stopped, or answers of a running one. `running_gateways` finds gateways by their control sockets,
for all commands. It must not know what clients and servers say to each other.
"""
