"""The hub, served to MCP clients as one server.

In: messages of clients, in any era. Out: answers, notifications and servers' questions, in the era
that the client speaks. `fronts` carry the messages, `eras` bridge the difference. It must not reach
behind the hub.
"""
