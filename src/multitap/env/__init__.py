"""Environments, and the Env protocol by which they describe and use each other.

An environment is the world an agent lives in: tools, agents, profiles, prompts, a model, a log.

In come hooks of a subclass or configuration files, questions of MCP clients, and the answers of
servers, by way of a hub. Out go tools for the agents of the same program (`ToolRegistry`), and ten
`env_*` tools for everybody else.

- `environment`: what users subclass; its parts are `environment_hooks` (what a subclass says),
  `environment_servers` (what it is connected to), `environment_world` (what it answers) and
  `environment_models`. `configured_environment` is made from files alone. `hosted_environment` is
  one of the servers of a gateway, whose clients learn of it what `profile_world` shows.
- `env_protocol`, `env_tools`, `env_schema`: the protocol as data, as tools, as JSON Schema.
- `env_server`, `env_hub_server`: a world, an environment as a server in this process. A gateway's
  front shows it; only `env_server` knows those fronts. `env_client` asks one.

It must not know how messages travel: not the wires, nor HTTP, nor eras. It uses models and skills
of `multitap.agent`, which in turn knows nothing of environments.
"""
