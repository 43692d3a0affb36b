"""Reads a `server.json` into drafts of the ways to run or reach its server."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from multitap.config.edit.server_draft import ServerDraft
from multitap.config.provenance import Provenance
from multitap.errors import ConfigError, MultitapError, quoted
from multitap.published.draft_inputs import DraftInputs
from multitap.published.foreign_text import as_literal, clean, server_name
from multitap.published.package_command import HINTS, KINDS, RUNNERS, Package, PackageKind
from multitap.records import dataclass

MAX_BYTES = 1024 * 1024
MOST = 64
"""The maximum number of packages, remotes, arguments or variables of a server."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_UNEXPRESSED = "it is started by a package and then reached by its URL, which is not supported"


@dataclass(frozen=True, slots=True)
class BundleAddress:
    """A bundle that has to be fetched before it can be described."""

    url: str
    digest: str


@dataclass(frozen=True, slots=True)
class PublishedServer:
    """One server as its publisher describes it."""

    name: str
    """The name with its namespace: `io.github.someone/weather`."""
    title: str
    description: str
    version: str
    status: str = "active"
    """`active`, `deprecated` or `deleted`."""
    ways: tuple[ServerDraft, ...] = ()
    """How it can be run or reached, in the publisher's order, packages first."""
    runners: tuple[str, ...] = ()
    """The program that each way needs; empty for a remote server."""
    bundles: tuple[BundleAddress, ...] = ()
    problems: tuple[str, ...] = field(default=())
    """Why other ways cannot be used."""

    def best(self, which: Callable[[str], object]) -> ServerDraft:
        """The way to add it: the first one whose program is installed.

        Raises:
            ConfigError: There is no usable one.
        """
        if not self.ways:
            why = "; ".join(self.problems) or "it names neither packages nor remotes"
            raise ConfigError(f"{self.name} cannot be added: {why}")
        pairs = zip(self.ways, self.runners, strict=True)
        return next((way for way, runner in pairs if not runner or which(runner)), self.ways[0])


def read_server(
    data: bytes | Mapping[str, Any],
    status: str = "active",
    message: str = "",
    *,
    provenance: Provenance = "registry",
) -> PublishedServer:
    """Parse a `server.json`.

    Args:
        data: The file, or its content.
        status: Its status in the registry.
        message: The reason for the status.
        provenance: How it came here, if not from a registry.

    Raises:
        ConfigError: It is not a valid `server.json`.
    """
    content = data if isinstance(data, Mapping) else _decode(data)
    name = content.get("name")
    if not isinstance(name, str) or not name or len(name) > 300:  # noqa: PLR2004 - the schema says 200
        raise ConfigError("`name` is missing: expected a server.json")
    found = list(_ways(content, name))
    notes = (
        (f"{name} is {status}{f': {clean(message)}' if message else ''}",)
        if status != "active"
        else ()
    )
    ways = [(way, runner) for way, runner in found if isinstance(way, ServerDraft)]
    note = f"{clean(content.get('description'))} ({clean(name)} {clean(content.get('version'))})"
    return PublishedServer(
        clean(name),
        clean(content.get("title")) or clean(name),
        clean(content.get("description")),
        clean(content.get("version")),
        status,
        tuple(
            replace(way, provenance=provenance, note=note, warnings=(*notes, *way.warnings))
            for way, _ in ways
        ),
        tuple(runner for _, runner in ways),
        tuple(way for way, _ in found if isinstance(way, BundleAddress)),
        tuple(way for way, _ in found if isinstance(way, str)),
    )


_Way = tuple[ServerDraft | BundleAddress | str, str]
"""A draft, or why there is none, and the program that it needs."""


def _ways(content: Mapping[str, Any], name: str) -> Iterator[_Way]:
    short = server_name(name)
    for package in _list(content.get("packages")):
        try:
            yield _package(_table(package), short)
        except (MultitapError, ValueError) as exc:
            yield str(exc), ""
    for remote in _list(content.get("remotes")):
        try:
            yield _remote(_table(remote), short), ""
        except (MultitapError, ValueError) as exc:
            yield str(exc), ""


def _package(table: Mapping[str, Any], name: str) -> _Way:
    kind, identifier = table.get("registryType"), table.get("identifier")
    if not isinstance(identifier, str):
        raise ConfigError("a package has no `identifier`")
    if kind == "mcpb":
        return _bundle(identifier, table.get("fileSha256")), ""
    known: PackageKind | None = next((one for one in KINDS if one == kind), None)
    if known is None:
        raise ConfigError(f"packages of the type {quoted(str(kind))} are not supported")
    if _table(table.get("transport")).get("type", "stdio") != "stdio":
        raise ConfigError(_UNEXPRESSED)
    version = table.get("version")
    package = Package(known, identifier, version if isinstance(version, str) else None).check()
    hint = table.get("runtimeHint")
    runner = hint if isinstance(hint, str) and hint in HINTS[known] else RUNNERS[known]
    inputs = DraftInputs()
    env = {key: inputs.value(key, one) for key, one in _named_tables(table, "environmentVariables")}
    # a name is also an argument of a container engine, and must not be anything else there
    if odd := next((key for key in env if not _VARIABLE.fullmatch(key)), None):
        raise ConfigError(f"{quoted(odd)} is not the name of a variable")
    options = [*_arguments(table.get("runtimeArguments"), inputs)]
    if known == "oci":
        options += [word for key in env for word in ("-e", key)]
    command, *args = package.command(runner, tuple(options))
    args += _arguments(table.get("packageArguments"), inputs)
    fields: dict[str, Any] = {"command": command, "args": args}
    if env:
        fields["env"] = env
    warnings = tuple(_warnings(table, hint, runner))
    return ServerDraft(name, fields, inputs.all, "registry", warnings=warnings), runner


def _warnings(table: Mapping[str, Any], hint: object, runner: str) -> Iterator[str]:
    if isinstance(hint, str) and hint and hint != runner:
        yield f"its publisher asks for {quoted(hint)}; {runner} is used instead"
    if base := clean(table.get("registryBaseUrl")):
        yield f"published at {base}; your own settings decide where it is fetched from"


def _bundle(url: str, digest: object) -> BundleAddress:
    if not isinstance(digest, str) or len(digest) != 64:  # noqa: PLR2004 - hex digits of SHA-256
        raise ConfigError("its bundle has no `fileSha256` to check it against")
    parts = urlsplit(url)
    # by the parsed host: 127.0.0.1.example.com is not this machine
    is_here = parts.scheme == "http" and parts.hostname == "127.0.0.1"
    if not url.isprintable() or not (is_here or (parts.scheme == "https" and parts.hostname)):
        raise ConfigError("its bundle is not at an https:// address")
    return BundleAddress(url, digest.lower())


def _remote(table: Mapping[str, Any], name: str) -> ServerDraft:
    kind, url = table.get("type"), table.get("url")
    if kind not in {"streamable-http", "sse"} or not isinstance(url, str):
        raise ConfigError(f"remotes of the type {quoted(str(kind))} are not supported")
    inputs = DraftInputs()
    fields: dict[str, Any] = {
        "url": inputs.template(url, _table(table.get("variables"))),
        "transport": kind,
    }
    headers = {key: inputs.value(key, one) for key, one in _named_tables(table, "headers")}
    if headers:
        fields["headers"] = headers
    return ServerDraft(name, fields, inputs.all, "registry")


def _named_tables(table: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for one in map(_table, _list(table.get(key))):
        if isinstance(name := one.get("name"), str) and name:
            yield name, one


def _arguments(given: Any, inputs: DraftInputs) -> Iterator[object]:
    """Words of a command line; an optional value is in a list with its option."""
    for one in map(_table, _list(given)):
        name, is_repeated = one.get("name"), one.get("isRepeated") is True
        has_value = any(
            key in one for key in ("value", "default", "choices", "valueHint", "format")
        )
        if one.get("type") != "named":
            hint = one.get("valueHint") or name or "argument"
            yield inputs.value(str(hint), one, multiple=is_repeated)
        elif not isinstance(name, str) or not name:
            raise ConfigError("a named argument has no `name`")
        elif one.get("format") == "boolean":
            # a flag: present or absent, without a value
            if "true" in {str(one.get("value")).lower(), str(one.get("default")).lower()}:
                yield as_literal(name)
        elif not has_value and not one.get("isRequired") and "description" not in one:
            yield as_literal(name)
        else:
            yield [as_literal(name), inputs.value(name, one, multiple=is_repeated)]


def _decode(data: bytes) -> Mapping[str, Any]:
    if len(data) > MAX_BYTES:
        raise ConfigError(f"a server.json has at most {MAX_BYTES:,} bytes")
    try:
        content: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ConfigError(f"it is not JSON: {exc}") from None
    if not isinstance(content, dict):
        raise ConfigError("expected a JSON object")
    return _table(content)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        return ()
    if len(value) > MOST:  # pyright: ignore[reportUnknownArgumentType]
        raise ConfigError(f"a list has more than {MOST} entries")
    return value  # pyright: ignore[reportUnknownVariableType]
