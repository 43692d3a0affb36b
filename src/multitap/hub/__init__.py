"""Many servers behind one object: what an agent, a gateway or a command opens.

In: settings, changes to them, and calls by catalog name. Out: results, a snapshot and events.
`call_deadline` sets the deadline of a call. It must not know agents, gateways or commands.
"""
