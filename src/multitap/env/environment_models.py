"""Chooses and asks the models of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from multitap.config import ModelConfig
from multitap.config.problems import did_you_mean
from multitap.env.environment_servers import EnvironmentServers
from multitap.errors import ConfigError, MultitapError, UnknownName
from multitap.later import Later
from multitap.upstream.handlers import RequestOrigin

if TYPE_CHECKING:
    import mcp_types as types

    from multitap.agent import models, sampling
    from multitap.env import env_conversion, env_protocol
else:
    types = Later("mcp_types")
    env_conversion = Later("multitap.env.env_conversion")
    models = Later("multitap.agent.models")
    sampling = Later("multitap.agent.sampling")

Sampled: TypeAlias = (
    "types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData"
)


class EnvironmentModels:
    """The models in the settings, each opened for one request."""

    def __init__(self, servers: EnvironmentServers) -> None:
        self._servers = servers

    def of(self, agent: str | None = None) -> ModelConfig:
        """The model of an agent, otherwise the environment's.

        Raises:
            ConfigError: None is configured.
        """
        settings = self._servers.settings
        said = settings.agents.get(agent) if agent else None
        model = (said.model if said else None) or settings.model
        if model is None:
            raise ConfigError("no model is configured", hint="name one under `[model]`")
        return model

    async def complete(self, request: env_protocol.LlmRequest) -> env_protocol.LlmReply:
        """Ask a model: the environment's, or one that is configured for an agent.

        Raises:
            ConfigError: There is none.
            UnknownName: No configured model has the requested name.
            ModelError: It gave no answer; the message says why.
        """
        config = self.of() if request.model is None else self._find_model(request.model)
        async with models.open_model(config, scope=self._servers.scope) as model:
            return env_conversion.reply(await model.complete(env_conversion.request(request)))

    async def sample(
        self, asked: RequestOrigin, params: types.CreateMessageRequestParams
    ) -> Sampled:
        """A handler for `Handlers.sample` that lets servers use the environment's model."""
        try:
            async with models.open_model(self.of(), scope=self._servers.scope) as model:
                return await sampling.sampler(model)(asked, params)
        except MultitapError as exc:
            return types.ErrorData(code=types.INTERNAL_ERROR, message=str(exc))

    def _find_model(self, name: str) -> ModelConfig:
        settings = self._servers.settings
        every = (settings.model, *(agent.model for agent in settings.agents.values()))
        # reversed, so that the environment's own model wins over an agent's of the same name
        known = {model.name: model for model in reversed(every) if model}
        if name not in known:
            raise UnknownName(
                f"no model named {name!r} is configured", hint=did_you_mean(name, known)
            )
        return known[name]
