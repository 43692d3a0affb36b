"""Environments, and the Env protocol through which they describe and use each other.

An environment is an agent's world: tools, agents, profiles, prompts, a model, a log.

In: the hooks of a subclass or configuration files, requests of MCP clients, and answers of servers,
through a hub. Out: tools for agents in the same program (`ToolRegistry`), and ten `env_*` tools for
everyone else.

- `environment` is what users subclass. Its parts are `environment_hooks` (what a subclass says),
  `environment_servers` (what it connects to), `environment_world` (what it answers) and
  `environment_models`. `configured_environment` is made from files alone. `hosted_environment` is
  one of the servers of a gateway; `profile_world` decides what that gateway's clients see of it.
- `env_protocol`, `env_tools`: the protocol as data, and as tools.
- `env_server`, `env_hub_server`: an environment as a server in this process. A gateway's front
  serves it; only `env_server` knows those fronts. `env_client` talks to one.

It must not know how messages travel: no wires, no HTTP, no eras. It uses models and skills of
`multitap.agent`, which does not know about environments.
"""
