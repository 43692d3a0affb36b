"""Reads a `server.json` into drafts of the ways to run or reach its server."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from multitap.config.dialects.draft import literal
from multitap.config.edit.drafts import DraftInput, ServerDraft
from multitap.config.provenance import Provenance
from multitap.errors import ConfigError, MultitapError, quoted, shortened
from multitap.printable import printable
from multitap.published.packages import HINTS, KINDS, RUNNERS, Package, PackageKind

LONGEST = 300
_BREAKS = re.compile(r"\s+")
_ODD = re.compile(r"[^a-z0-9]+")
_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_VERSION = re.compile(r"(?<=.)[@#:=<>~!\[].*", re.DOTALL)
_AFFIX = re.compile(
    r"^(?:mcp[-_.])?server[-_.]|^mcp[-_.]|(?:[-_.]mcp)?[-_.]server$|[-_.]mcp$|\.(?:git|tgz)$"
)
_GENERIC = frozenset({"", "mcp", "server", "mcp-server", "cli", "latest"})


def clean(text: object) -> str:
    """Text for people, on one line; empty if it is not text."""
    if not isinstance(text, str):
        return ""
    # cut first, so that megabytes are not processed
    return shortened(printable(_BREAKS.sub(" ", text[: 4 * LONGEST])).strip(), LONGEST)


def as_literal(text: object) -> str:
    """A value with `${` escaped, so that it names no variable."""
    return literal(text if isinstance(text, str) else str(text))


def option_name(text: str) -> str:
    """The option for an input: `BRAVE_API_KEY` is `--brave-api-key`."""
    return _ODD.sub("-", text.lower()).strip("-")[:40] or "value"


def server_name(text: str) -> str:
    """A short name for a server: `io.github.someone/weather` is `weather`."""
    return _NAME.sub("-", text.rstrip("/").rpartition("/")[2]).strip("-")[:40] or "server"


def package_nickname(package: str) -> str:
    """A short name for the server in a package: `@modelcontextprotocol/server-git` is `git`."""
    scope, _, last = package.rstrip("/").rpartition("/")
    # twice: `mcp-server-x-mcp` has one at each end, and so has `x-mcp-server.git`
    name = _AFFIX.sub("", _AFFIX.sub("", _VERSION.sub("", last)))
    # @playwright/mcp is `playwright` to people
    return server_name(name if name not in _GENERIC else scope.lstrip("@") or last)


MOST_INPUTS = 64
_PLACEHOLDER = re.compile(r"\{([^{}\s]{1,100})\}")


class DraftInputs:
    """The inputs of one draft, by unique names."""

    def __init__(self) -> None:
        self._inputs: dict[str, DraftInput] = {}

    @property
    def all(self) -> tuple[DraftInput, ...]:
        return tuple(self._inputs.values())

    def value(self, name: str, description: Mapping[str, Any], *, multiple: bool = False) -> str:
        """A value with placeholders for the user's input.

        Args:
            description: As in `server.json`: `value` with `variables`, or an input.
        """
        fixed = description.get("value")
        if isinstance(fixed, str):
            return self._fill(fixed, table_of(description.get("variables")))
        return self._ask(name, description, multiple=multiple)

    def template(self, text: str, variables: Mapping[str, Any]) -> str:
        """A text with each `{name}` replaced by a placeholder for the user's input."""
        return self._fill(text, variables)

    def _fill(self, text: str, variables: Mapping[str, Any]) -> str:
        parts: list[str] = []
        end = 0
        for match in _PLACEHOLDER.finditer(text):
            if match[1] not in variables:
                continue  # literal braces
            parts += (
                as_literal(text[end : match.start()]),
                self.value(match[1], table_of(variables[match[1]])),
            )
            end = match.end()
        return "".join((*parts, as_literal(text[end:])))

    def _ask(self, name: str, description: Mapping[str, Any], *, multiple: bool) -> str:
        default = description.get("default")
        draft_input = DraftInput(
            name=self._free(option_name(name)),
            description=clean(description.get("description") or description.get("placeholder")),
            secret=description.get("isSecret") is True,
            required=description.get("isRequired") is True,
            default=None if default is None else as_literal(default),
            choices=_texts(description.get("choices")),
            multiple=multiple,
            path=description.get("format") == "filepath",
        )
        self._inputs[draft_input.name] = draft_input
        return f"${{input:{draft_input.name}}}"

    def _free(self, name: str) -> str:
        if len(self._inputs) >= MOST_INPUTS:
            raise ValueError(f"it asks for more than {MOST_INPUTS} things")
        number, free = 1, name
        while free in self._inputs:
            number += 1
            free = f"{name}-{number}"
        return free


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(as_literal, value)) if isinstance(value, list) else ()  # pyright: ignore[reportUnknownArgumentType]


MAX_BYTES = 1024 * 1024
MOST = 64
"""The maximum number of packages, remotes, arguments or variables of a server."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_UNEXPRESSED = "it is started by a package and then reached by its URL, which is not supported"


class BundleAddress(msgspec.Struct, frozen=True):
    """A bundle that has to be fetched before it can be described."""

    url: str
    digest: str


class PublishedServer(msgspec.Struct, frozen=True, kw_only=True):
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
    problems: tuple[str, ...] = msgspec.field(default=())
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
        provenance: How it came here, if not from a registry.

    Raises:
        ConfigError: It is not a valid `server.json`.
    """
    content = data if isinstance(data, Mapping) else _decode(data)
    name = content.get("name")
    if not isinstance(name, str) or not name or len(name) > 300:  # noqa: PLR2004 - the schema says 200
        raise ConfigError("`name` is missing: expected a server.json")
    candidates = list(_ways(content, name))
    notes = (
        (f"{name} is {status}{f': {clean(message)}' if message else ''}",)
        if status != "active"
        else ()
    )
    ways = [(way, runner) for way, runner in candidates if isinstance(way, ServerDraft)]
    note = f"{clean(content.get('description'))} ({clean(name)} {clean(content.get('version'))})"
    return PublishedServer(
        name=clean(name),
        title=clean(content.get("title")) or clean(name),
        description=clean(content.get("description")),
        version=clean(content.get("version")),
        status=status,
        ways=tuple(
            replace(way, provenance=provenance, note=note, warnings=(*notes, *way.warnings))
            for way, _ in ways
        ),
        runners=tuple(runner for _, runner in ways),
        bundles=tuple(way for way, _ in candidates if isinstance(way, BundleAddress)),
        problems=tuple(way for way, _ in candidates if isinstance(way, str)),
    )


_Way = tuple[ServerDraft | BundleAddress | str, str]
"""A draft, or why there is none, and the program that it needs."""


def _ways(content: Mapping[str, Any], name: str) -> Iterator[_Way]:
    short = server_name(name)
    for package in _list(content.get("packages")):
        try:
            yield _package(table_of(package), short)
        except (MultitapError, ValueError) as exc:
            yield str(exc), ""
    for remote in _list(content.get("remotes")):
        try:
            yield _remote(table_of(remote), short), ""
        except (MultitapError, ValueError) as exc:
            yield str(exc), ""


def _package(table: Mapping[str, Any], name: str) -> _Way:
    kind, identifier = table.get("registryType"), table.get("identifier")
    if not isinstance(identifier, str):
        raise ConfigError("a package has no `identifier`")
    if kind == "mcpb":
        return _bundle(identifier, table.get("fileSha256")), ""
    package_kind: PackageKind | None = next((name for name in KINDS if name == kind), None)
    if package_kind is None:
        raise ConfigError(f"packages of the type {quoted(str(kind))} are not supported")
    if table_of(table.get("transport")).get("type", "stdio") != "stdio":
        raise ConfigError(_UNEXPRESSED)
    version = table.get("version")
    package = Package(
        package_kind, identifier, version if isinstance(version, str) else None
    ).check()
    hint = table.get("runtimeHint")
    # only launchers: a publisher must not choose the program that runs
    runner = (
        hint if isinstance(hint, str) and hint in HINTS[package_kind] else RUNNERS[package_kind]
    )
    inputs = DraftInputs()
    env = {
        key: inputs.value(key, variable)
        for key, variable in _named_tables(table, "environmentVariables")
    }
    # a name is also an argument of a container engine, and must not be anything else there
    if odd := next((key for key in env if not _VARIABLE.fullmatch(key)), None):
        raise ConfigError(f"{quoted(odd)} is not the name of a variable")
    options = [*_arguments(table.get("runtimeArguments"), inputs)]
    if package_kind == "oci":
        # by name: values in a command line are shown to all users of the machine
        options += [word for key in env for word in ("-e", key)]
    command, *args = package.command(runner, tuple(options))
    args += _arguments(table.get("packageArguments"), inputs)
    fields: dict[str, Any] = {"command": command, "args": args}
    if env:
        fields["env"] = env
    warnings = tuple(_warnings(table, hint, runner))
    return ServerDraft(
        name=name, fields=fields, inputs=inputs.all, provenance="registry", warnings=warnings
    ), runner


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
        "url": inputs.template(url, table_of(table.get("variables"))),
        "transport": kind,
    }
    headers = {key: inputs.value(key, header) for key, header in _named_tables(table, "headers")}
    if headers:
        fields["headers"] = headers
    return ServerDraft(name=name, fields=fields, inputs=inputs.all, provenance="registry")


def _named_tables(table: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for entry in map(table_of, _list(table.get(key))):
        if isinstance(name := entry.get("name"), str) and name:
            yield name, entry


def _arguments(arguments: Any, inputs: DraftInputs) -> Iterator[object]:
    """Words of a command line; an optional value is in a list with its option."""
    for argument in map(table_of, _list(arguments)):
        name, is_repeated = argument.get("name"), argument.get("isRepeated") is True
        has_value = any(
            key in argument for key in ("value", "default", "choices", "valueHint", "format")
        )
        if argument.get("type") != "named":
            hint = argument.get("valueHint") or name or "argument"
            yield inputs.value(str(hint), argument, multiple=is_repeated)
        elif not isinstance(name, str) or not name:
            raise ConfigError("a named argument has no `name`")
        elif argument.get("format") == "boolean":
            # a flag: present or absent, without a value
            if "true" in {str(argument.get("value")).lower(), str(argument.get("default")).lower()}:
                yield as_literal(name)
        elif not has_value and not argument.get("isRequired") and "description" not in argument:
            yield as_literal(name)
        else:
            yield [as_literal(name), inputs.value(name, argument, multiple=is_repeated)]


def _decode(data: bytes) -> Mapping[str, Any]:
    if len(data) > MAX_BYTES:
        raise ConfigError(f"a server.json has at most {MAX_BYTES:,} bytes")
    try:
        content: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ConfigError(f"it is not JSON: {exc}") from None
    if not isinstance(content, dict):
        raise ConfigError("expected a JSON object")
    return table_of(content)


def table_of(value: Any) -> Mapping[str, Any]:
    """A value if it is a table, else an empty one."""
    return value if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        return ()
    if len(value) > MOST:  # pyright: ignore[reportUnknownArgumentType]
        raise ConfigError(f"a list has more than {MOST} entries")
    return value  # pyright: ignore[reportUnknownVariableType]
