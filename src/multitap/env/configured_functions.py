"""Loads the Python functions that a configuration names."""

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from hashlib import sha256
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from multitap.errors import ConfigError
from multitap.later import Later
from multitap.tools import ToolDef

if TYPE_CHECKING:
    import pydantic
else:
    pydantic = Later("pydantic")

Function = Callable[..., Any]


def load_tool(reference: str) -> ToolDef:
    """The tool for `module:function` or `path/to/file.py:function`.

    Raises:
        ConfigError: There is none, or it cannot be loaded.
    """
    function = load_function(reference)
    try:
        return ToolDef.of(function)
    except (pydantic.PydanticUserError, NameError, TypeError, AttributeError) as exc:
        reason = str(exc).partition("\n")[0]
        raise ConfigError(f"{reference!r} cannot be a tool: {reason}") from exc


def load_function(reference: str) -> Function:
    """The function for `module:function` or `path/to/file.py:function`.

    A file runs again each time, so that a reload sees its current content.

    Raises:
        ConfigError: There is none, or its module or file fails to load.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name:
        hint = "`module:function` or `path/to/file.py:function`"
        raise ConfigError(f"{reference!r} does not name a function", hint=hint)
    try:
        module = _run(Path(where)) if where.endswith(".py") else import_module(where)
    except (Exception, SystemExit) as exc:  # boundary: whatever the user's code does
        raise ConfigError(f"{where} cannot be loaded: {type(exc).__name__}: {exc}") from exc
    try:
        found: Any = reduce(getattr, name.split("."), module)
    except AttributeError:
        raise ConfigError(f"{where} has no {name!r}") from None
    if inspect.isroutine(found):
        return found
    raise ConfigError(f"{name!r} in {where} is not a function")


class _UncachedLoader(SourceFileLoader):
    """Loads the current source: compiled files are compared by the second only."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"{path} is not cached")


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    called = f"multitap_functions_{sha256(str(path).encode()).hexdigest()[:12]}"
    loader = _UncachedLoader(called, str(path))
    module = module_from_spec(ModuleSpec(called, loader, origin=str(path)))
    before = sys.modules.get(called)
    sys.modules[called] = module  # string annotations are resolved there
    try:
        loader.exec_module(module)
    except BaseException:
        _restore(called, before)
        raise
    return module


def _restore(name: str, before: ModuleType | None) -> None:
    if before is None:
        del sys.modules[name]
    else:
        sys.modules[name] = before
