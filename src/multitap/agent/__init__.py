"""The loop in which a model uses tools, and all that it needs for that.

In: a model's configuration, a `ToolRegistry` and a person's words. Out: steps, which are what the
model says, which tools it uses and how the turn ended. `engine` runs the loop, `models` speaks to
providers, `skills` and `prompts` are what a model is given to read, `sampling` lets MCP servers
ask a model.

It must not know where tools come from: not hubs, nor servers, nor environments.
"""
