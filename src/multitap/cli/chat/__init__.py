"""A conversation at the terminal with a model that uses the servers' tools.

In: typed lines, and the steps of an agent. Out: the model's text, as it streams, with the tools it
uses. `typed_turns` parses lines, `chat_session` runs turns, `chat_printing` shows steps,
`saved_chats` stores conversations, `mcp_commands` runs `/mcp …`.
The loop belongs to `multitap.agent`: this package must not know how a model is reached or a tool is
called.
"""
