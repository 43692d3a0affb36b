"""The agent loop: a model uses tools until it has answered.

In: a model's configuration, a `ToolRegistry` and what the user says. Out: steps: what the model
says, which tools it uses and how the turn ended. `engine` runs the loop, `models` talks to
providers, `skills` has what a model gets to read, prompts included, and `sampling` lets MCP servers
use a model.

It must not know where tools come from: no hubs, no servers, no environments.
"""
