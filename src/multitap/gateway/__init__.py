"""The hub, shown to MCP clients as one server.

In: messages of clients, in any era. Out: answers, notifications and questions of servers, in
the era that the client speaks. `fronts` bring the messages, `eras` bridge the difference. It
must not reach behind the hub.
"""
