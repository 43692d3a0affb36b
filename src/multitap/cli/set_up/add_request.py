"""Parses the words after `multitap add` into the servers they mean."""

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path, PurePath
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from multitap.cli.set_up.consent import Consent
from multitap.config.documents import is_there
from multitap.config.edit.drafts import ServerDraft, with_literal_variables
from multitap.config.provenance import STANDINGS, Provenance
from multitap.errors import ConfigError
from multitap.published.server_json import package_nickname, server_name
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


class LauncherLine(msgspec.Struct, frozen=True):
    """A command line that runs a published package."""

    package: str
    """The package with its version, or the image, as typed."""

    @property
    def name(self) -> str:
        return package_nickname(self.package)


def read_launcher_line(command_line: Sequence[str]) -> LauncherLine | None:
    """What a command line runs, if it begins with a launcher; options after it are its own."""
    if not command_line:
        return None
    # snippets for Windows say `npx.cmd`
    program = PurePath(command_line[0]).name.removesuffix(".cmd").removesuffix(".exe")
    for launcher, valued in _LAUNCHERS.items():
        if (program, *command_line[1 : len(launcher)]) == launcher:
            package = _first_argument(command_line[len(launcher) :], valued)
            return LauncherLine(package) if package else None
    container = parse_container_run(command_line)
    return LauncherLine(container.image) if container and container.image else None


def _first_argument(arguments: Sequence[str], valued: Collection[str]) -> str | None:
    queue = [*arguments]
    while queue:
        word = queue.pop(0)
        if word == "--":
            return queue[0] if queue else None
        if not word.startswith("-"):
            return word
        if word in valued:
            del queue[:1]
    return None


_ADDRESS = re.compile(r"https?://\S+")
_OTHER_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_PATH = re.compile(r"\.{0,2}/|~|(?!\w+:).*\.(?:jsonc?|toml|ya?ml|mcpb|dxt)$")


class AddRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The typed words, sorted but not yet interpreted."""

    arguments: tuple[str, ...] = ()
    """The words before `--`, without options: usually a name, and perhaps a URL."""
    command: tuple[str, ...] = ()
    """The words after `--`."""
    text: str = ""
    """Pasted text: a single long argument, or standard input."""
    is_piped: bool = False
    """Whether the text comes from standard input."""
    env: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    headers: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    transport: str | None = None
    inputs: Mapping[str, tuple[str, ...]] = msgspec.field(
        default_factory=dict[str, tuple[str, ...]]
    )
    """Options that are not ours (`--root .`): answers to inputs of the server's draft."""
    consent: Consent = Consent()
    """How the person agrees to what has to be fetched."""

    def __repr__(self) -> str:
        return f"AddRequest({self.arguments!r})"  # variables, headers and inputs may be secret


def parse_words(
    arguments: Sequence[str],
    *,
    command: Sequence[str] = (),
    line: Sequence[str] = (),
    env: Sequence[str] = (),
    headers: Sequence[str] = (),
    transport: str | None = None,
    piped: str = "",
    consent: Consent = Consent(),
) -> AddRequest:
    """Parse a command line into a request.

    Raises:
        ConfigError: An option has no value, or is malformed.
    """
    plain, inputs = _inputs([word for word in arguments if word != "-"])
    # a word with one of these was quoted: a whole line or a snippet, and no name
    texts = [word for word in plain if not command and any(char in word for char in " \n{")]
    text = piped or shlex.join(line) or "".join(texts[:1])
    return AddRequest(
        arguments=tuple(word for word in plain if word not in texts),
        command=tuple(command),
        text=text,
        is_piped=bool(piped),
        env=dict(_variable(word) for word in env),
        headers=dict(_header(word) for word in headers),
        transport=transport,
        inputs=inputs,
        consent=consent,
    )


def _inputs(arguments: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Separate words and options with their values."""
    plain: list[str] = []
    inputs: dict[str, tuple[str, ...]] = {}
    queue = [*arguments]
    while queue:
        word = queue.pop(0)
        if not word.startswith("-"):
            plain.append(word)
            continue
        name, sign, value = word.lstrip("-").partition("=")
        # `--root --yes` lacks a value; a single dash may begin one, such as -1
        if not sign:
            value = queue.pop(0) if queue and not queue[0].startswith("--") else ""
        if not value:
            raise ConfigError(f"the option {word!r} has no value", hint=f"write `{word} VALUE`")
        inputs[name] = (*inputs.get(name, ()), value)
    return plain, inputs


def _variable(word: str) -> tuple[str, str]:
    name, sign, value = word.partition("=")
    if not name:
        raise ConfigError(f"{word!r} names no variable", hint="write `-e KEY=VALUE`")
    # without a value, the entry refers to the variable: its value may be secret
    return name, value if sign else f"${{{name}}}"


def _header(word: str) -> tuple[str, str]:
    name, colon, value = word.partition(":")
    if not colon or not name.strip():
        raise ConfigError("a header has a name and a value", hint="write `-H 'KEY: VALUE'`")
    return name.strip(), value.strip()


Recogniser = Callable[[AddRequest], tuple[ServerDraft, ...]]
"""Interprets a request as servers; none if it does not understand the request."""


def resolve(request: AddRequest) -> tuple[ServerDraft, ...]:
    """The servers that a request means.

    Raises:
        ConfigError: It cannot be interpreted.
    """
    from multitap.cli.set_up.published import PUBLISHED, a_server_json, options_of  # noqa: PLC0415 - it knows us

    # mistakes first: the registry may even have a package named like a mistyped path
    _check_words(request)
    _check_file(request)
    for recognise in (a_server_json, *RECOGNISERS, *PUBLISHED):
        if drafts := recognise(request):
            _check_options(request, drafts)
            return tuple(map(settle_provenance, drafts))
    hint = options_of(request.arguments[0]) if request.arguments else None
    raise ConfigError(f"cannot tell which server {_show(request)} means", hint=hint or _HINT)


def settle_provenance(draft: ServerDraft) -> ServerDraft:
    """The draft as its author stands: packages are their registry's, strangers' texts are text."""
    if not STANDINGS[draft.provenance].is_own:
        return with_literal_variables(draft)
    command = (draft.fields.get("command", ""), *draft.fields.get("args", ()))
    line = read_launcher_line(command)
    if line is None:
        return draft
    about = f"the package {line.package}; what its registry has under that name is not watched"
    return replace(draft, provenance="registry", is_typed=True, note=about)


def _check_words(request: AddRequest) -> None:
    """Report clear mistakes before anything guesses."""
    most = 0 if _launcher_line(request) else 1
    if request.command and not most <= len(request.arguments) <= 1:
        names = shlex.join(request.arguments)
        problem = f"{names!r} is more than a name" if names else "the server has no name"
        command = shlex.join(request.command)
        raise ConfigError(problem, hint=f"write `multitap add NAME -- {command}`")
    for word in request.arguments:
        if _OTHER_ADDRESS.match(word) and not (_ADDRESS.fullmatch(word) or _is_link(word)):
            raise ConfigError(
                f"no MCP server has an address such as {word!r}",
                hint="expected one that starts with http:// or https://",
            )


def _check_options(request: AddRequest, drafts: Sequence[ServerDraft]) -> None:
    """Report options that would have no effect."""
    for draft in drafts:
        if "command" in draft.fields and (request.headers or request.transport):
            option = "-H" if request.headers else "-t"
            raise ConfigError(
                f"`{option}` is for the address of a server, and {draft.name!r} is a program",
                hint="`-e KEY=VALUE` sets a variable for a program",
            )
        if "url" in draft.fields and request.env:
            raise ConfigError(
                f"`-e` is for programs, and {draft.name!r} is a remote server",
                hint="`-H 'KEY: VALUE'` sends it a header",
            )


def _check_file(request: AddRequest) -> None:
    """Report missing files: a path is not a name that a registry may know."""
    word = request.arguments[-1] if request.arguments and not request.command else ""
    if _PATH.match(word) and not is_there(Path(word).expanduser()):
        raise ConfigError(
            f"there is no file {word!r}",
            hint="expected a `server.json`, a bundle (`.mcpb`) or the configuration of a client",
        )


def a_launcher_line(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add npx -y package`, quoted or not, also after NAME or `--`."""
    line, names = _launcher_line(request), request.arguments
    if line is None or len(names) > 1:
        return ()
    command = request.command or tuple(_split(request.text))
    return (_program(names[0] if names else line.name, command, _origin(request)),)


def a_command(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add NAME -- python server.py`."""
    if not request.command:
        return ()
    return (_program(request.arguments[0], request.command, "user"),)


def _program(name: str, command: Sequence[str], provenance: Provenance) -> ServerDraft:
    program, *args = command
    # what is piped does not decide where it runs
    here = _here(tuple(command)) if STANDINGS[provenance].is_own else ""
    fields = {"command": program, "args": args, "cwd": here}
    return ServerDraft(name=name, fields=_without_empty(fields), provenance=provenance)


def _launcher_line(request: AddRequest) -> LauncherLine | None:
    return read_launcher_line(request.command or _split(request.text))


def _split(text: str) -> list[str]:
    """The words of a line as a shell splits them; none if it is not a line."""
    from multitap.cli.set_up.pasted import line_words  # noqa: PLC0415 - rarely

    return line_words(text) if text else []


def _origin(request: AddRequest) -> Provenance:
    """Who wrote a line: the person who types it makes it their own."""
    return "pipe" if request.is_piped else "user"


def an_address(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add [NAME] URL [-H "K: V"]`."""
    addresses = [word for word in request.arguments if _ADDRESS.fullmatch(word)]
    names = [word for word in request.arguments if word not in addresses]
    if request.command or len(addresses) != 1 or len(names) > 1:
        return ()
    fields = {"url": addresses[0], "transport": request.transport}
    return (
        ServerDraft(
            name=names[0] if names else name_of(addresses[0]), fields=_without_empty(fields)
        ),
    )


def an_install_link(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add 'cursor://…'`: the link behind "Add to Cursor" or "Install in VS Code"."""
    from multitap.cli.set_up.pasted import from_snippet, snippet_in  # noqa: PLC0415 - rarely

    *names, word = request.arguments or ("",)
    if request.command or len(names) > 1 or not _is_link(word):
        return ()
    name, text = snippet_in(word)
    return from_snippet(text, names[0] if names else name, "link")


def a_configuration(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add [NAME] ./mcp.json`: the servers of a client's file."""
    from multitap.cli.set_up.pasted import from_file  # noqa: PLC0415

    *names, word = request.arguments or ("",)
    path = Path(word).expanduser()
    suffixes = {".json", ".jsonc", ".toml", ".yaml", ".yml"}
    if request.command or len(names) > 1 or not _PATH.match(word) or path.suffix not in suffixes:
        return ()
    return from_file(path, names[0] if names else None)


def a_pasted_text(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add 'claude mcp add …'`, or a snippet of a file: `add [NAME] '{"mcpServers": …}'`."""
    from multitap.cli.set_up.pasted import from_line, from_snippet  # noqa: PLC0415

    if not request.text:
        return ()
    name = request.arguments[0] if len(request.arguments) == 1 else None
    origin = _origin(request)
    # a snippet is somebody else's text, also if it is typed as an argument
    drafts = from_line(request.text, origin) or from_snippet(request.text, name, "pipe")
    if not drafts and request.text.lstrip().startswith(("{", "[", '"')):
        raise ConfigError("there is no server in this text", hint=_SNIPPET)
    return drafts


_NAMELESS = frozenset(
    ("mcp", "api", "www", "app", "sse", "http", "v1", "v2", "server", "servers", "streamable")
)
"""Parts of an address that say nothing about what is there."""
# the usual second-level labels, as in example.co.uk; a whole list of suffixes would be 200 KB
_SUFFIXES = frozenset(("co", "com", "org", "net", "ac", "gov", "edu", "ne", "or", "go"))


def name_of(url: str) -> str:
    """A short name for the server at an address: the distinctive part of its host or path.

    `mcp.linear.app` is `linear` to people, and `127.0.0.1:9/github/mcp` is `github`.
    """
    address = urlsplit(url)
    host = address.hostname or ""
    labels = [] if _is_number(host) or "." not in host else host.split(".")[:-1]
    if len(labels) > 1 and labels[-1] in _SUFFIXES:
        del labels[-1]
    labels = [label for label in labels if label not in _NAMELESS]
    if labels:
        return server_name(labels[-1])
    segments = [part for part in address.path.split("/") if part and part.lower() not in _NAMELESS]
    port = f"-{address.port}" if address.port else ""
    machine = "localhost" if _is_number(host) else host.split(".")[0]
    return server_name(segments[-1] if segments else f"{machine}{port}")


def _is_number(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _here(command: tuple[str, ...]) -> str:
    """The current folder, if the command names a file in it: the gateway may run elsewhere."""
    paths = [Path(word) for word in command if not word.startswith("-")]
    named = any(not path.is_absolute() and is_there(path) for path in paths)
    return str(Path.cwd()) if named else ""


def _without_empty(fields: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if value}


def _show(request: AddRequest) -> str:
    return repr(shlex.join(request.arguments) or request.text[:40])


def _is_link(word: str) -> bool:
    from multitap.cli.set_up.pasted import is_install_link  # noqa: PLC0415 - rarely

    return ":" in word and is_install_link(word)


RECOGNISERS: tuple[Recogniser, ...] = (
    a_launcher_line,
    a_command,
    an_install_link,
    an_address,
    a_configuration,
    a_pasted_text,
)
"""Tried in order; those that ask other machines come last."""

_SNIPPET = 'expected `{"mcpServers": {"NAME": {"command": …}}}` or `{… {"url": …}}`'
_HINT = (
    "`multitap add NAME -- COMMAND ARGS…`, `multitap add NAME URL`, a line such as"
    " `claude mcp add …`, a JSON snippet from a README, a package, or a name that"
    " `multitap search` finds"
)
