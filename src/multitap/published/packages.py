"""Makes the command that runs a package; a package name can never become an option."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from multitap.config.edit.drafts import DraftInput, ServerDraft
from multitap.errors import ConfigError, quoted

PackageKind = Literal["npm", "pypi", "oci", "nuget"]
KINDS: tuple[PackageKind, ...] = get_args(PackageKind)
RUNNERS: Mapping[PackageKind, str] = {
    "npm": "npx",
    "pypi": "uvx",
    "oci": "docker",
    "nuget": "dnx",
}
HINTS: Mapping[PackageKind, frozenset[str]] = {
    "npm": frozenset({"npx", "bunx"}),
    "pypi": frozenset({"uvx"}),
    "oci": frozenset({"docker", "podman"}),
    "nuget": frozenset({"dnx"}),
}
"""Programs that a publisher may ask for."""

# A name begins with no hyphen and has no space, URL or path in it: `--registry=…` or
# `git+https://…` as a "package" would make the launcher run something else.
_NAMES: Mapping[PackageKind, re.Pattern[str]] = {
    "npm": re.compile(r"(@[a-z0-9~][a-z0-9._~-]*/)?[a-zA-Z0-9~][a-zA-Z0-9._~-]*"),
    "pypi": re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"),
    "oci": re.compile(
        r"[a-z0-9][a-zA-Z0-9._/-]*(:[0-9]+/[a-zA-Z0-9._/-]+)?(:\w[\w.-]*)?(@sha256:[0-9a-f]{64})?"
    ),
    "nuget": re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*"),
}
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]*")
# npm's own limit, the smallest of them that is known
_LONGEST = 214


class Package(msgspec.Struct, frozen=True):
    """One published package."""

    kind: PackageKind
    name: str
    version: str | None = None
    """The exact version; None for the newest."""
    program: str | None = None
    """The program to run, if its name differs from the package's."""

    def check(self) -> "Package":
        """The same package, after checking that its name and version are safe.

        Raises:
            ConfigError: A launcher could take its name or version for something else.
        """
        if len(self.name) > _LONGEST or not _NAMES[self.kind].fullmatch(self.name):
            raise ConfigError(
                f"{quoted(self.name)} is not the name of {_WORDS[self.kind]}",
                hint=f"write `{self.kind}:NAME`; `multitap search WORD` finds some",
            )
        for text in (self.version, self.program):
            if text is not None and (len(text) > _LONGEST or not _VERSION.fullmatch(text)):
                raise ConfigError(f"{quoted(text)} is not an exact version of {self.name}")
        return self

    def command(self, runner: str | None = None, options: tuple[object, ...] = ()) -> list[object]:
        """The command that runs it, without its own arguments.

        Args:
            options: For the launcher; a nested list is kept or dropped as a whole.
        """
        program = runner or RUNNERS[self.kind]
        match self.kind:
            case "npm":
                # npx asks before it installs anything, and nobody is there to answer
                agreed = (
                    [] if program == "bunx" or {"-y", "--yes"} & {*map(str, options)} else ["-y"]
                )
                return [program, *agreed, *options, _join_version(self.name, "@", self.version)]
            case "pypi":
                spec = _join_version(self.name, "==", self.version)
                if self.program:
                    return [program, *options, "--from", spec, self.program]
                return [program, *options, _join_version(self.name, "@", self.version)]
            case "oci":
                is_tagged = "@" in self.name or ":" in self.name.rpartition("/")[2]
                image = self.name if is_tagged else _join_version(self.name, ":", self.version)
                # `-i`: a server reads its messages from standard input
                return [program, "run", "-i", "--rm", *options, image]
            case "nuget":
                return [
                    program,
                    _join_version(self.name, "@", self.version),
                    *options,
                    "--yes",
                    "--",
                ]


_WORDS: Mapping[PackageKind, str] = {
    "npm": "an npm package",
    "pypi": "a PyPI package",
    "oci": "a container image",
    "nuget": "a NuGet package",
}


def _join_version(name: str, mark: str, version: str | None) -> str:
    return f"{name}{mark}{version}" if version else name


def is_name(kind: PackageKind, text: str) -> bool:
    """Whether a text can be the name of a package."""
    return len(text) <= _LONGEST and bool(_NAMES[kind].fullmatch(text))


FILE = Path(__file__).with_name("catalog.toml")


class CatalogServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server in the catalog."""

    name: str
    description: str
    package: Package
    tools: int
    """The number of tools when it was tried."""
    also: str = ""
    """What else people call what it does; for searching."""
    args: Sequence[Any] = ()
    env: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    inputs: tuple[DraftInput, ...] = ()
    hosts: Sequence[str] = ()
    """Hosts that its sandbox must open."""
    can_be_confined: bool = True
    """Whether it works in a sandbox."""

    def draft(self) -> ServerDraft:
        command, *args = self.package.command()
        fields: dict[str, Any] = {"command": command, "args": [*args, *self.args]}
        if self.env:
            fields["env"] = dict(self.env)
        if self.hosts:
            fields["sandbox_rules"] = {"hosts": [*self.hosts]}
        if not self.can_be_confined:
            fields["sandbox"] = False
        note = f"{self.description} ({self.package.kind}: {self.package.name})"
        return ServerDraft(
            name=self.name, fields=fields, inputs=self.inputs, provenance="registry", note=note
        )


@cache
def servers() -> Mapping[str, CatalogServer]:
    """All servers of the catalog, by name."""
    return {name: _server(name, table) for name, table in tomllib.loads(FILE.read_text()).items()}


def _server(name: str, table: Mapping[str, Any]) -> CatalogServer:
    kind: PackageKind = "npm" if "npm" in table else "pypi"
    return CatalogServer(
        name=name,
        description=table["description"],
        package=Package(kind, table[kind], table["version"], table.get("program")),
        tools=table["tools"],
        also=table.get("also", ""),
        args=table.get("args", ()),
        env=table.get("env", {}),
        inputs=tuple(
            DraftInput(name=key, **fields) for key, fields in table.get("inputs", {}).items()
        ),
        hosts=table.get("hosts", ()),
        can_be_confined=table.get("sandbox", True),
    )
