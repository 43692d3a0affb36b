"""What a later version of a trusted server may change without a new question.

Less is always fine: disabled, a stricter sandbox, fewer rules. In a project that is followed, code
and arguments may change as well; but not what its program is, what it gets, or what it may reach.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from multitap.config.expand import variables
from multitap.config.models import Limits, SandboxRules, ServerConfig, StdioServer
from multitap.config.owners import is_within
from multitap.config.project_bounds import folders_only, paths_of
from multitap.config.scope import expand, locate
from multitap.errors import ConfigError
from multitap.sandbox.containers import CLIENTS
from multitap.trust.pins.packages import launch_of

NARROWING = frozenset(("enabled", "sandbox", "sandbox_rules", "limits"))
"""Fields in which less needs no new question."""
_FREE = frozenset(
    (
        *("args", "command", "cwd", "description", "start", "idle_timeout", "timeout", "timeouts"),
        *("hard_timeout", "connect_timeout", "health_interval", "reconnect", "retry", "log_level"),
        *("era", "tool_names", "tool_descriptions", "check_arguments", "check_results"),
    )
)
"""Fields that may change in a project that is followed; of the command, only within bounds."""
_STRENGTH: Mapping[str, int] = {"strict": 1, "bubblewrap": 2}


class PartBounds(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a server may reach at most."""

    enabled: bool = True
    sandbox: int = 0
    """The strength of the level that it asks for; 0 for the usual one."""
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    proc: bool = False
    amounts: dict[str, int] = {}
    """Its limits, and those of its sandbox."""
    variables: tuple[str, ...] = ()

    def covers(self, other: "PartBounds") -> bool:
        """Whether the other one reaches nothing that this one does not."""
        sets = ("read", "write", "hosts", "variables")
        return (
            (self.enabled or not other.enabled)
            and other.sandbox >= self.sandbox
            and (self.proc or not other.proc)
            and all({*getattr(other, name)} <= {*getattr(self, name)} for name in sets)
            and all(other.amounts.get(key, most) <= most for key, most in self.amounts.items())
        )


def bounds_of(config: ServerConfig) -> PartBounds:
    """The bounds of a server's entry, with unexpanded variables."""
    amounts = {name: getattr(config.limits, name) for name in Limits.model_fields}
    names = {
        f"{variable.source} {variable.name}"
        for _, variable in variables(config)
        if variable.source != "folder"
    }
    if not isinstance(config, StdioServer):
        return PartBounds(enabled=config.enabled, amounts=amounts, variables=tuple(sorted(names)))
    rules: SandboxRules = config.sandbox_rules
    return PartBounds(
        enabled=config.enabled,
        sandbox=_STRENGTH.get(config.sandbox, 0),
        read=tuple(sorted(map(str, rules.read))),
        write=tuple(sorted(map(str, rules.write))),
        hosts=tuple(sorted(rules.hosts)),
        proc=rules.proc,
        amounts={**amounts, "processes": rules.processes, "memory": rules.memory},
        variables=tuple(sorted(names)),
    )


def program_of(config: ServerConfig, root: Path, folder: Path) -> str:
    """What runs, whatever its arguments: a package, a program outside, or code of the project."""
    if not isinstance(config, StdioServer):
        return f"address {getattr(config, 'url', '')}"
    if Path(config.command).name in CLIENTS:  # its arguments decide what of this machine it opens
        return " ".join(("container", config.command, *config.args))
    if launch := launch_of(config.command, config.args):
        return f"{launch.kind} {launch.name}@{launch.version} by {config.command}"
    if "/" not in config.command:
        return f"program {config.command}"
    scope = folders_only(folder, root)
    try:
        place = locate(expand(config.command, scope), scope)
    except (ConfigError, ValueError):
        return f"program {config.command}"
    return "code of the project" if is_within(place, root) else f"program {os.path.realpath(place)}"


def fixed_content(
    config: ServerConfig,
    said: Mapping[str, Any],
    files: Mapping[str, str],
    root: Path,
    folder: Path,
) -> dict[str, Any]:
    """What may not change in a project that is followed.

    Args:
        config: The server, with unexpanded variables.
        said: Its fields, as they are written.
        files: The digests of the files behind it.
        root: The project's folder.
        folder: The current folder.
    """
    values = [*_value_files(config, root, folder)]
    return {
        "program": program_of(config, root, folder),
        "fields": {key: value for key, value in said.items() if key not in _FREE | NARROWING},
        # their content becomes a variable, a header or an argument
        "values": {name: digest for name, digest in files.items() if name in values},
    }


def _value_files(config: ServerConfig, root: Path, folder: Path) -> Collection[str]:
    scope = folders_only(folder, root)
    home = os.path.realpath(root)
    names = [variable.name for _, variable in variables(config) if variable.source == "file"]
    names += (str(path) for key, path in paths_of(config) if key != "cwd")
    paths: list[str] = []
    for name in names:
        try:
            real = os.path.realpath(locate(expand(name, scope), scope))
            paths.append(os.path.relpath(real, home))
        except (ConfigError, ValueError):
            continue
    return paths
