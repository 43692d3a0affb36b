"""Resolves the words after `multitap add` to a published server."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from multitap.cli.set_up.add_request import AddRequest
from multitap.cli.signals import run_async
from multitap.cli.terminal import note
from multitap.config import Surroundings, load, native
from multitap.config.edit.drafts import ServerDraft
from multitap.config.models import URL
from multitap.config.problems import nearest
from multitap.errors import ConfigError, Unavailable
from multitap.files import read_regular
from multitap.published import packages
from multitap.published.bundles import MAX_MANIFEST, read_bundle
from multitap.published.packages import Package, PackageKind, is_name
from multitap.published.registry import DEFAULT, VARIABLE, RegistryClient, is_registry_name
from multitap.published.server_json import (
    BundleAddress,
    PublishedServer,
    package_nickname,
    read_server,
)

BUNDLES = (".mcpb", ".dxt")
_KINDS: dict[str, PackageKind] = {
    "npm": "npm",
    "pypi": "pypi",
    "oci": "oci",
    "docker": "oci",
    "nuget": "nuget",
}
_ASKING = 20.0  # seconds for npm to say whether it knows a package


def a_bundle(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add [NAME] weather.mcpb`."""
    name, word = _split_name(request, lambda word: word.lower().endswith(BUNDLES))
    return _call_it(read_bundle(Path(word).expanduser()), name) if word else ()


def a_server_json(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add [NAME] server.json`, or its content pasted."""
    # by its keys, before it is parsed: a snippet of a client's file is JSON as well
    if '"registryType"' in request.text or '"remotes"' in request.text:
        name = request.arguments[0] if request.arguments else None
        described = read_server(request.text.encode(), provenance="pipe")
        return _call_it(_best(described, request), name)
    name, word = _split_name(request, lambda word: word.endswith("server.json"))
    if not word:
        return ()
    if "://" in word:
        raise ConfigError(
            f"{word!r} describes a server, and is not one", hint="fetch it, and add the file"
        )
    try:
        data = read_regular(Path(word).expanduser(), MAX_MANIFEST)
    except OSError as exc:
        raise ConfigError(f"{word} cannot be read: {exc.strerror}") from None
    return _call_it(_best(read_server(data, provenance="file"), request), name)


def a_catalog_name(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add filesystem --root .`, or `add NAME filesystem`."""
    catalog = packages.servers()
    name, word = _split_name(request, catalog.__contains__)
    return _call_it(catalog[word].draft(), name) if word else ()


def a_package(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add npm:NAME@VERSION`, `add pypi:NAME==VERSION`, `add @scope/name`, or a bare name."""
    name, word = _split_name(request, lambda word: _package(word) is not None)
    package = _package(word) if word else None
    if package is None:
        return ()
    command, *args = package.check().command()
    draft = ServerDraft(
        name=package_nickname(package.name),
        fields={"command": command, "args": args},
        provenance="registry",
        note=f"the {package.kind} package {package.name}",
    )
    return _call_it(draft, name)


def a_registry_name(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add io.github.someone/weather`."""
    name, word = _split_name(request, is_registry_name)
    if not word:
        return ()
    client = RegistryClient(registry_address())
    server = run_async(lambda: client.server(word))
    if server is None:
        raise ConfigError(
            f"the registry has no server named {word!r}",
            hint="`multitap search WORD` finds servers",
        )
    return _call_it(_best(server, request), name)


def a_bare_package(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add some-mcp-server`: an npm package if npm has it, otherwise a PyPI package."""
    name, word = _split_name(request, lambda word: is_name("pypi", word))
    if not word or request.command or request.text:
        return ()
    # anybody may publish a package under a name that is easily mistyped
    if match := nearest(word, packages.servers()):
        raise ConfigError(
            f"the catalog has no server named {word!r}",
            hint=f"did you mean `{match}`? `npm:{word}` or `pypi:{word}` is the package",
        )
    kind: PackageKind = "npm" if _npm_has(word) else "pypi"
    command, *args = Package(kind, word).check().command()
    fields = {"command": command, "args": args}
    about = f"the {kind} package {word}"
    draft = ServerDraft(
        name=package_nickname(word), fields=fields, provenance="registry", note=about
    )
    return _call_it(draft, name)


def options_of(word: str) -> str | None:
    """How the values of a server of the catalog are given; None if it is not in the catalog."""
    server = packages.servers().get(word)
    if server is None:
        return None
    options = "".join(f" --{input_.name} VALUE" for input_ in server.draft().inputs)
    return f"`multitap add {word}{options}` adds the one of the catalog"


PUBLISHED = (a_bundle, a_catalog_name, a_package, a_registry_name, a_bare_package)
"""Tried in order; those that ask other machines come last."""


def registry_address() -> str:
    """The registry of the environment, otherwise of the files, otherwise the official one."""
    if address := os.environ.get(VARIABLE):
        if not URL.match(address):
            raise ConfigError(
                f"{VARIABLE} is not the address of a registry: {address!r}",
                hint="expected one that starts with http:// or https://",
            )
        return address
    return load(native(Surroundings.here())).settings.registry or DEFAULT


def _split_name(request: AddRequest, fits: Callable[[str], bool]) -> tuple[str | None, str | None]:
    """The chosen name, if any, and the word that identifies the server."""
    if request.command or request.text or not 1 <= len(request.arguments) <= 2:  # noqa: PLR2004 - NAME WHAT
        return None, None
    *names, word = request.arguments
    if not fits(word):
        return None, None
    return (names[0] if names else None), word


def _call_it(draft: ServerDraft, name: str | None) -> tuple[ServerDraft, ...]:
    if name is None:
        return (draft,)
    from msgspec.structs import replace  # noqa: PLC0415 - rarely

    return (replace(draft, name=name),)


def _best(server: PublishedServer, request: AddRequest) -> ServerDraft:
    # package managers update packages; bundles have to be fetched and kept by us
    if server.ways or not server.bundles:
        return server.best(shutil.which)
    address = server.bundles[0].url
    note(f"{server.name} is a bundle at {address}")
    if request.consent.is_dry:
        raise ConfigError("its bundle has to be fetched, and a dry run fetches nothing")
    request.consent.confirm(
        "its bundle has to be fetched from a stranger's address",
        "Fetch it, and show what is in it?",
    )
    return run_async(lambda: _fetch(server.bundles[0]))


async def _fetch(bundle: BundleAddress) -> ServerDraft:
    """Fetch a bundle from its publisher, and check its digest before it is opened."""
    from multitap.published.registry import download  # noqa: PLC0415 - rarely

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.mcpb"
        try:
            await download(bundle.url, path)
        except Unavailable as exc:
            raise ConfigError(f"the bundle cannot be fetched: {exc}") from None
        return read_bundle(path, digest=bundle.digest)


def _package(word: str) -> Package | None:
    prefix, mark, rest = word.partition(":")
    kind = _KINDS.get(prefix) if mark else None
    if kind is None:
        kind, rest = ("npm", word) if word.startswith("@") and "/" in word else (None, word)
    if kind is None:
        return None
    separator = {"npm": "@", "pypi": "==", "nuget": "@"}.get(kind)
    if separator is None:
        return Package(kind, rest)
    # from the second character on: the `@` of a scope is not that of a version
    name, _, version = rest[1:].partition(separator)
    return Package(kind, rest[:1] + name, version or None)


def _npm_has(name: str) -> bool:
    npm = shutil.which("npm")
    if npm is None:
        return False
    try:
        answer = subprocess.run(  # noqa: S603 - a program of the user's, and a name that is not an option
            [npm, "view", name, "version"],
            cwd=Path.home(),  # not in the current folder: a stranger's `.npmrc` could redirect it
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ASKING,
        )
    # without an answer of npm, PyPI is tried
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and bool(answer.stdout.strip())
