"""A conversation at the terminal with a model that uses the servers' tools.

In: typed lines, and the steps of an agent. Out: what the model says, as it streams, with the tools
it uses. `typed_turns` parses lines, `chat_session` takes turns, `chat_printing` shows steps,
`saved_chats` keeps conversations, `mcp_commands` does what `/mcp` says.
The loop belongs to `multitap.agent`: this package must not know how a model is reached or a tool is
called.
"""
