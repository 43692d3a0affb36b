"""The catalog of well-known, tested servers that ships with Multitap."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

from multitap.config.edit.server_draft import DraftInput, ServerDraft
from multitap.published.package_command import Package, PackageKind
from multitap.records import dataclass

FILE = Path(__file__).with_name("catalog.toml")


@dataclass(frozen=True, slots=True)
class CatalogServer:
    """A server in the catalog."""

    name: str
    description: str
    package: Package
    tools: int
    """The number of tools when it was tried."""
    args: Sequence[Any] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
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
        return ServerDraft(self.name, fields, self.inputs, provenance="registry", note=note)


@cache
def servers() -> Mapping[str, CatalogServer]:
    """All servers of the catalog, by name."""
    return {name: _server(name, table) for name, table in tomllib.loads(FILE.read_text()).items()}


def matching(words: str) -> list[CatalogServer]:
    """Servers with every word in their name, description or package; the best match first."""
    wanted = words.casefold().split()

    def text(server: CatalogServer) -> str:
        return f"{server.name} {server.description} {server.package.name}".casefold()

    found = [one for one in servers().values() if all(word in text(one) for word in wanted)]
    return sorted(found, key=lambda one: (not any(word in one.name for word in wanted), one.name))


def _server(name: str, table: Mapping[str, Any]) -> CatalogServer:
    kind: PackageKind = "npm" if "npm" in table else "pypi"
    return CatalogServer(
        name,
        table["description"],
        Package(kind, table[kind], table["version"], table.get("program")),
        table["tools"],
        table.get("args", ()),
        table.get("env", {}),
        tuple(DraftInput(key, **given) for key, given in table.get("inputs", {}).items()),
        table.get("hosts", ()),
        table.get("sandbox", True),
    )
