"""A conversation with a model that uses the servers' tools, at the terminal.

In: lines that a person types, and the steps of an agent. Out: what the model says, as it comes,
with the tools it uses. `typed_turns` understands lines, `chat_printing` shows steps,
`saved_chats` keeps conversations. The loop is `multitap.agent`'s: what is here must not know how
a model is reached or a tool is called.
"""
