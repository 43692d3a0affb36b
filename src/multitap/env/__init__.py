"""Environments, and the Env protocol through which they describe and use each other.

An environment is an agent's world: tools, agents, profiles, prompts, a model, a log.

In: the hooks of a subclass or configuration files, requests of MCP clients, and answers of servers,
through a hub. Out: tools for agents in the same program (`ToolRegistry`), and ten `env_*` tools for
everyone else.

- `environment` is what users subclass; `configured` is made from files alone, for a program or as
  one of the servers of a gateway.
- `protocol` has the messages and the ten tools; `world` answers them for an environment.
- `server` serves them to MCP clients and is the only one that knows fronts; `client` talks to such
  a server.

It must not know how messages travel: no wires, no HTTP, no eras. It uses models and skills of
`multitap.agent`, which does not know about environments.
"""
