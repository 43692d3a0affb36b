"""Opens the model that a configuration names."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module

from anyio import to_thread

from multitap.agent.models.language_model import Model
from multitap.config import ModelConfig, Scope, expand_model
from multitap.errors import ModelError
from multitap.trust.secrets.vault import model_scope

# The default of both client libraries, which wait longer before each.
RETRIES = 2


@asynccontextmanager
async def open_model(
    config: ModelConfig, *, scope: Scope | None = None, retries: int = RETRIES
) -> AsyncGenerator[Model]:
    """Open a model; leaving the block closes its connections.

    Args:
        config: The model's configuration.
        scope: Expands variables in its configuration; by default, this process's.
        retries: How often a request is repeated after no answer, or status 429 or 5xx.

    Raises:
        ConfigError: A variable is not set.
        ModelError: The provider's client library is missing, or there is no key.
    """
    scope = scope or model_scope()
    await to_thread.run_sync(_load, config.provider)
    async with _connect(expand_model(config, scope), retries) as model:
        yield model


def _connect(config: ModelConfig, retries: int) -> AbstractAsyncContextManager[Model]:
    match config.provider:
        case "openai":
            from multitap.agent.models.openai_chat import connect_model  # noqa: PLC0415
        case "anthropic":
            from multitap.agent.models.anthropic_messages import connect_model  # noqa: PLC0415
    return connect_model(config, retries)


def _load(library: str) -> None:
    """Import a client library in a thread, because it takes a second."""
    try:
        import_module(library)
    except ModuleNotFoundError:
        raise ModelError(
            f"a model of {library!r} needs its client library",
            hint="pip install 'multitap[chat]'",
        ) from None
