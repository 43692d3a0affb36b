"""Several gateways that act as one: who runs which server, and what all of them know.

In: a coordinator, which is Redis, or the memory of the parent of several workers. Out: leases on
servers with fencing tokens, members, records, streams, limits, and wires to servers that another
replica runs. A cluster is an option: it must not cost anything where there is none.

- `coordinator` declares what all replicas share; `redis_coordinator`, `local_coordinator` and
  `socket_coordinator` keep it in Redis, in memory, and in the parent of several workers.
- `replica` is one gateway of a cluster: `membership` knows the others, `leases` says who runs which
  server, and `breaker` and `logins` share failures and renewals.
- Servers: `peers` connects replicas, `wires` reach servers elsewhere, `relays` let others use ours,
  in `peer_messages`. `neighbours` does the same for the hubs of one process.
- Clients: `sessions` move between replicas, and `session_records` is what all can read of them;
  `requests` go to the replica that can answer them, `front` is how HTTP takes part, `gateways` what
  else gateways agree on. All of that goes over the `bus`.
- `serving` makes a gateway of `multitap serve` a replica; `worker_peers` is for its own workers.
"""
