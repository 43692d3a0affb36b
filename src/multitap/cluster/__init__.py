"""Several gateways that act as one: who runs which server, and what all of them know.

In: a coordinator, which is Redis, or the memory of the parent of several workers. Out: leases on
servers with fencing tokens, members, records, streams, limits, and wires to servers that another
replica runs. `coordinator` is all that the hub and the gateway need to know; only
`redis_coordinator` imports `redis`. It must not know hubs and gateways: they hand it what it calls.
"""
