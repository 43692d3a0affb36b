"""How this copy of Multitap was installed, and the commands that extend, update and remove it."""

import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

NAME = "multitap"


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of Multitap.

    Its commands never fetch Multitap by its bare name: what a package index has under that name
    need not be this program.
    """

    tool: str
    """What installed it: `pipx`, `uv tool`, `uv pip` or `pip`."""
    python: str
    """The interpreter that runs it."""
    environment: str = NAME
    """The name of its environment, for pipx and uv."""
    folder: Path | None = None
    """The folder that it was installed from, if that still exists."""
    is_editable: bool = False
    url: str = ""
    """The address that it was installed from, with the version control in front."""
    requirements: tuple[str, ...] = ()
    """What it needs, each with the extra that needs it."""

    @classmethod
    def here(cls) -> "Installation":
        """The copy that runs now."""
        prefix, python = Path(sys.prefix), sys.executable
        if "pipx" in prefix.parts:
            tool = "pipx"
        elif {"uv", "tools"} <= {*prefix.parts}:
            tool = "uv tool"
        else:
            tool = "pip" if find_spec("pip") else "uv pip"
        environment = prefix.name if tool in {"pipx", "uv tool"} else NAME
        try:
            own = distribution(NAME)
        except PackageNotFoundError:  # run from a folder on the path
            return cls(tool=tool, python=python, environment=environment)
        origin = _origin(own)
        url = str(origin.get("url", ""))
        address = urlsplit(url)
        folder = Path(unquote(address.path)) if address.scheme == "file" else None
        control = origin.get("vcs_info", {}).get("vcs")
        return cls(
            tool=tool,
            python=python,
            environment=environment,
            folder=folder if folder and folder.is_dir() else None,
            is_editable=bool(origin.get("dir_info", {}).get("editable")),
            url=f"{control}+{url}" if control else "" if folder else url,
            requirements=tuple(own.requires or ()),
        )

    @property
    def origin(self) -> str:
        """Where it came from, for people."""
        return f"from {self.folder or self.url}" if self.source else "from a package or an index"

    @property
    def source(self) -> str:
        """What a package manager installs it from again; empty if that is not known."""
        return str(self.folder or self.url)

    def adding(self, extra: str) -> str:
        """The command that adds an optional part."""
        parts = [shlex.quote(part) for part in self._parts(extra)]
        if self.tool == "pipx":
            return " ".join(["pipx inject", self.environment, *parts])
        if self.tool == "uv tool" and self.source:
            options = [word for part in parts for word in ("--with", part)]
            return " ".join(["uv tool install", *options, shlex.quote(self.source)])
        if self.folder and self.tool != "uv tool":
            return f"{self._pip('install')} {self._from_folder(f'{self.folder}[{extra}]')}"
        return " ".join([self._pip("install"), *parts])

    def updating(self) -> str:
        """The command that updates it; empty if only its user knows where newer ones are."""
        first = ""
        if self.folder and (self.folder / ".git").exists():
            first = f"git -C {shlex.quote(str(self.folder))} pull && "
        if self.tool == "pipx":
            return f"{first}pipx upgrade {self.environment}"
        if self.tool == "uv tool":
            return f"{first}uv tool upgrade --reinstall {self.environment}"
        if not self.source:
            return ""
        source = self._from_folder(self.source) if self.folder else shlex.quote(self.source)
        return f"{first}{self._pip('install')} --upgrade {source}"

    def removing(self) -> str:
        """The command that removes it."""
        if self.tool in {"pipx", "uv tool"}:
            return f"{self.tool} uninstall {self.environment}"
        return f"{self._pip('uninstall')} {NAME}"

    def _pip(self, verb: str) -> str:
        python = shlex.quote(self.python)
        if self.tool == "pip":
            return f"{python} -m pip {verb}"
        return f"uv pip {verb} --python {python}"

    def _from_folder(self, folder: str) -> str:
        return f"{'-e ' * self.is_editable}{shlex.quote(folder)}"

    def _parts(self, extra: str) -> list[str]:
        """The packages of an optional part; the same for every package manager."""
        mark = f"extra == '{extra}'"
        parts = (requirement.partition(";") for requirement in self.requirements)
        return [name.strip() for name, _, when in parts if mark in when.replace('"', "'")]


def extra_hint(extra: str) -> str:
    """What to do when an optional part is missing."""
    here = Installation.here()
    if not here.requirements:
        return f"install what `pyproject.toml` of Multitap lists under `{extra}`"
    return f"`{here.adding(extra)}` installs it"


def _origin(own: Distribution) -> dict[str, Any]:
    """The record that installers leave of where a package came from; PEP 610."""
    try:
        return msgspec.json.decode(own.read_text("direct_url.json") or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
