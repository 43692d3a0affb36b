"""Recognises command lines that fetch and run a published package, such as `npx -y PACKAGE`."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath

from multitap.published.foreign_text import package_nickname
from multitap.records import dataclass
from multitap.sandbox.containers import parse_container_run

_OF_NPM = frozenset(
    (
        *("-p", "--package", "-c", "--call", "-w", "--workspace", "-n", "--node-arg"),
        *("--registry", "--cache", "--userconfig", "--prefix", "--script-shell", "--loglevel"),
    )
)
_OF_UV = frozenset(
    (
        *("--from", "-w", "--with", "--with-editable", "--with-requirements", "-p", "--python"),
        *("-c", "--constraints", "-b", "--build-constraints", "--overrides", "--env-file"),
        *("--index", "--default-index", "-i", "--index-url", "--extra-index-url", "-f"),
        *("--find-links", "--index-strategy", "--keyring-provider", "--resolution", "--prerelease"),
        *("-P", "--upgrade-package", "--reinstall-package", "--refresh-package", "--link-mode"),
        *("-C", "--config-setting", "--no-build-package", "--no-binary-package", "--torch-backend"),
        *("--exclude-newer", "--python-platform", "--fork-strategy", "--allow-insecure-host"),
        *("--cache-dir", "--color", "--directory", "--project", "--config-file"),
    )
)
_OF_PIPX = frozenset({"--spec", "--python", "--pip-args", "-i", "--index-url", "--with"})
_LAUNCHERS: Mapping[tuple[str, ...], Collection[str]] = {
    ("npx",): _OF_NPM,
    ("npm", "exec"): _OF_NPM,
    ("npm", "x"): _OF_NPM,
    ("bunx",): {"-p", "--package"},
    ("bun", "x"): {"-p", "--package"},
    ("pnpm", "dlx"): {"--package", "--allow-build", "--registry"},
    ("pnpx",): {"--package", "--allow-build", "--registry"},
    ("yarn", "dlx"): {"-p", "--package"},
    ("uvx",): _OF_UV,
    ("uv", "tool", "run"): _OF_UV,
    ("pipx", "run"): _OF_PIPX,
    ("dnx",): {"--source", "--add-source", "--configfile", "--framework", "--version"},
}
"""The options of each launcher that take a value as a word of its own."""


@dataclass(frozen=True, slots=True)
class LauncherLine:
    """A command line that runs a published package."""

    package: str
    """The package with its version, or the image, as typed."""

    @property
    def name(self) -> str:
        return package_nickname(self.package)


def read_launcher_line(words: Sequence[str]) -> LauncherLine | None:
    """What a command line runs, if it begins with a launcher; options after it are its own."""
    if not words:
        return None
    program = PurePath(words[0]).name.removesuffix(".cmd").removesuffix(".exe")
    for launcher, valued in _LAUNCHERS.items():
        if (program, *words[1 : len(launcher)]) == launcher:
            package = _first_argument(words[len(launcher) :], valued)
            return LauncherLine(package) if package else None
    container = parse_container_run(words)
    return LauncherLine(container.image) if container and container.image else None


def _first_argument(words: Sequence[str], valued: Collection[str]) -> str | None:
    queue = [*words]
    while queue:
        word = queue.pop(0)
        if word == "--":
            return queue[0] if queue else None
        if not word.startswith("-"):
            return word
        if word in valued:
            del queue[:1]
    return None
