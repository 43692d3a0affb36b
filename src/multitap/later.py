"""A module that is imported on first use."""

from importlib import import_module
from typing import Any


class Later:
    """Stands for a module that is slow to import and that most runs never need.

    Type checkers see the module itself:

        if TYPE_CHECKING:
            import mcp_types as types
        else:
            types = Later("mcp_types")

    Args:
        module: Its full name.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._module), name)
        setattr(self, name, value)  # later look-ups find it directly
        return value


async def load(module: object, name: str) -> None:
    """Import a module in a thread, so that its first use does not block the loop.

    Args:
        module: The module.
        name: Anything in it.
    """
    from anyio import to_thread  # noqa: PLC0415 - most modules that import this one do not need it

    if isinstance(module, Later) and name not in vars(module):
        await to_thread.run_sync(getattr, module, name)
