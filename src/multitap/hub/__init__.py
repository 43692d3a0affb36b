"""Many servers behind one object: what an agent, a gateway or a command opens.

In: settings, changes to them, and calls by catalog name. Out: results, a snapshot and events.
`routes` says what the calls of a tool need, their time limits included. It must not know agents,
gateways or commands.
"""
