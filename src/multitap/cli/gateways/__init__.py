"""Commands about gateways: serve one, or talk to those that run.

In: the options of `serve`, `reload`, `restart`, `stats` and others. Out: a gateway until it is
stopped, or what a running one answers. `running_gateways` finds gateways by their control sockets,
for all commands. It must not know what clients and servers say to each other.
"""
