"""The model that the user chose, or how to choose one."""

from multitap.config import ModelConfig
from multitap.errors import MultitapError

NO_MODEL = """\
no model is configured: only `/call TOOL key=value` and the other commands work
choose one with `/model anthropic/NAME` or `/model openai/NAME`, or in the configuration:
  [model]
  provider = "anthropic"
  name = "claude-sonnet-4-5\""""


def model_named(name: str | None, configured: ModelConfig | None) -> ModelConfig | None:
    """The configured model with this name; None to use the configured one unchanged.

    Raises:
        MultitapError: No provider has that name.
    """
    if name is None:
        return None
    provider, slash, model = name.partition("/")
    base = configured or ModelConfig(name=name)
    if not slash:
        return base.model_copy(update={"name": name})
    if provider == base.provider:
        return base.model_copy(update={"name": model})
    match provider:
        case "openai" | "anthropic":
            return ModelConfig(provider=provider, name=model)
        case _ if configured is not None:  # many endpoints name their models `maker/model`
            return base.model_copy(update={"name": name})
        case _:
            hint = "`openai/NAME` or `anthropic/NAME`"
            raise MultitapError(f"no provider named {provider!r}", hint=hint)
