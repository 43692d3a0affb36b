"""The hub, served to MCP clients as one server.

In: messages of clients, in any era. Out: answers, notifications and servers' questions, in the era
that the client speaks. It must not reach behind the hub.

`fronts` carry the messages, `gateway` hands each one to its method, and `eras` bridges the two
protocols. What a client sees is its `view`; `variants` has those of clients that declare other
extensions. `calls` makes calls; some wait in `parked_calls` for a person, or go on as `tasks`.
Servers' `questions` find the client that they belong to, and `private_links` keep apart clients
that cannot share a session. `shaping` shortens results, `tool_search` and `scripts` stand for all
tools where a model has no room for them, and `quotas` counts what each client uses.
"""
