"""Many servers behind one object: what an agent, a gateway or a command opens.

In: settings, changes to them, and calls by catalog name. Out: results, a snapshot and events. It
must not know agents, gateways or commands.

`supervisor` keeps links equal to the settings, which `reload` follows; `catalog_builder` makes one
catalog of what they offer, after `vetting`. A call finds its tool by `lookup`, learns from `routes`
what every call of it needs, passes the `permissions`, and is made by `calls`; `task_runs` has those
that outlive their request. `people` have servers of their own (`personal_servers`).
"""
