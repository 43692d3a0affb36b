"""Finds servers in pasted text: lines for other programs, snippets of files, install links."""

import base64
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from multitap.cli.configuration import problem_reason
from multitap.config import HttpServer, StdioServer, read_document, read_text
from multitap.config.dialects import DIALECTS
from multitap.config.documents import Document, is_list, is_table, read_file
from multitap.config.edit.drafts import DraftInput, ServerDraft, without_loose_settings
from multitap.config.edit.servers import write_entry
from multitap.config.layers import Layer, merge
from multitap.config.problems import Severity
from multitap.config.provenance import Provenance
from multitap.config.secrets import is_telling, masked
from multitap.errors import ConfigError
from multitap.published.server_json import clean

PROGRAMS = frozenset(
    ("claude", "codex", "gemini", "code", "code-insiders", "cursor", "opencode", "cline", "amp")
)
"""Programs whose `… mcp add` and `… --add-mcp` lines are understood."""

_VALUED = {
    **dict.fromkeys(("-e", "--env"), "env"),
    **dict.fromkeys(("-H", "--header", "--headers"), "headers"),
    **dict.fromkeys(("-t", "--transport"), "transport"),
    **dict.fromkeys(("-s", "--scope", "--oauth-resource"), ""),
    **dict.fromkeys(("--client-id", "--oauth-client-id"), "client_id"),
    "--callback-port": "callback_port",
    "--url": "url",
    "--bearer-token-env-var": "bearer",
    "--timeout": "timeout",
    "--description": "description",
    "--include-tools": "allow",
    "--exclude-tools": "deny",
}
_FLAGS = frozenset({"--trust", "--client-secret", "--yes", "-y", "--json"})
_ADDRESS = re.compile(r"https?://\S+")
_PAIR = re.compile(r"[A-Za-z_]\w*=")
_PROMPT = re.compile(r"^\s*[$>%]\s+")
_SECRET = re.compile(r"\$\{(?:auth|input):([^}]+)\}")
"""VS Code's `${input:…}`, which also occurs in snippets for other clients."""
_ODD = re.compile(r"[^\w.-]+", re.ASCII)
_LONGEST_NAME = 64
_BLANK = re.compile(r"<[^>]*>|\[?your[ _-].*|.*[_-]here\b.*|x{3,}|\.{3}|…", re.IGNORECASE)
"""Placeholders in READMEs for the reader's own values."""


def is_line(arguments: list[str]) -> bool:
    """Whether words are a line for another program, such as `claude mcp add …`."""
    return len(arguments) > 1 and arguments[0] in PROGRAMS and arguments[1] in {"mcp", "--add-mcp"}


def line_words(text: str) -> list[str]:
    """The words of a pasted line, without the prompt; none if a shell would not take it."""
    try:
        return shlex.split(_PROMPT.sub("", text.replace("\\\n", " ")))
    except ValueError:
        return []


def from_line(text: str, provenance: Provenance) -> tuple[ServerDraft, ...]:
    """The server that a line for another program adds; none if it is not such a line.

    Raises:
        ConfigError: It is one, but cannot be understood.
    """
    line = line_words(text)
    if not is_line(line):
        return ()
    if line[1] == "--add-mcp" and len(line) > 2:  # noqa: PLR2004 - its value
        return from_snippet(line[2], None, "pipe")
    if line[2:3] == ["add-json"] and len(line) > 4:  # noqa: PLR2004 - name and value
        return from_snippet(line[4], line[3], "pipe")
    # `mcp list` or `mcp remove`: pasted by mistake
    if line[2:3] != ["add"]:
        raise ConfigError(f"`{' '.join(line[:3])}` does not add a server")
    return (_parse_add(line[0], line[3:], provenance),)


def from_snippet(text: str, name: str | None, provenance: Provenance) -> tuple[ServerDraft, ...]:
    """The servers in a snippet of a configuration file; may be empty.

    JSON, TOML or YAML of any dialect, with or without the table around the servers; `name` is for a
    server without its own.

    Raises:
        ConfigError: It is a snippet, but not valid.
    """
    for candidate, path in _candidates(text):
        document, problems = read_text(candidate, path)
        if document is None:
            if path.suffix == ".json" and text.lstrip().startswith("{"):
                raise ConfigError(
                    problem_reason(problems[0]), hint="paste all of it, with both braces"
                )
            continue
        if drafts := _drafts(document, name, provenance):
            return drafts
    return ()


def from_file(path: Path, name: str | None) -> tuple[ServerDraft, ...]:
    """The servers in another client's file.

    Raises:
        ConfigError: It cannot be read, or has none.
    """
    document, problems = read_file(path)
    if document is None:
        problem = problem_reason(problems[0]) if problems else f"there is no file {path}"
        raise ConfigError(problem, hint=problems[0].hint if problems else None)
    if drafts := _drafts(document, name, "file"):
        return drafts
    raise ConfigError(
        f"{path} names no servers",
        hint="expected a `server.json` with `packages` or `remotes`, or a client's configuration",
    )


def _candidates(text: str) -> Iterator[tuple[str, Path]]:
    # READMEs show the whole file, or only the entry, with or without a code fence
    stripped = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    if stripped.startswith("{"):
        yield stripped, Path("pasted.json")
    elif stripped.startswith('"'):
        yield f"{{{stripped.rstrip(',')}}}", Path("pasted.json")
    elif stripped.startswith("["):
        yield stripped, Path("pasted.toml")
    elif re.match(r"[A-Za-z_]+:\s*\n", stripped):
        yield stripped, Path("pasted.yaml")


def _drafts(
    document: Document, name: str | None, provenance: Provenance
) -> tuple[ServerDraft, ...]:
    data = document.data
    if is_table(data) and isinstance(data.get("name"), str) and data.keys() & {"command", "url"}:
        name = name or data["name"]
        inner = {key: value for key, value in data.items() if key not in {"name", "inputs"}}
        inputs = data.get("inputs")
        snippet = {"servers": {name: inner}, "inputs": inputs} if inputs else None
        document = Document(path=document.path, data=snippet or {"mcpServers": {name: inner}})
    elif name and is_table(data) and data.keys() & {"command", "url", "serverUrl", "httpUrl"}:
        document = Document(path=document.path, data={"mcpServers": {name: data}})
    elif is_table(data) and isinstance(data.get("command"), str) and "args" in data:
        raise ConfigError("this server has no name", hint="`multitap add NAME '{…}'` gives it one")
    reading = read_document(document, Path.cwd())
    merged = merge([Layer(reading)])
    wrong = [problem for problem in merged.problems if problem.severity is Severity.ERROR]
    if wrong and merged.servers:
        raise ConfigError(problem_reason(wrong[0]), hint=wrong[0].hint)
    warnings = [problem for problem in merged.problems if problem.severity is Severity.WARNING]
    questions = _inputs(document)
    return tuple(
        _draft(
            server,
            config,
            questions,
            tuple(
                problem_reason(problem) for problem in warnings if problem.server in {None, server}
            ),
            provenance,
        )
        for server, config in merged.settings.servers.items()
        if isinstance(config, StdioServer | HttpServer)
    )


def _inputs(document: Document) -> Mapping[str, Mapping[str, Any]]:
    """The inputs of VS Code, by id."""
    node = document.root.find("inputs")
    tables = node.value if node and is_list(node.value) else []
    return {str(table.get("id")): table for table in tables if is_table(table)}


def _draft(
    name: str,
    config: StdioServer | HttpServer,
    questions: Mapping[str, Mapping[str, Any]],
    warnings: tuple[str, ...],
    provenance: Provenance,
) -> ServerDraft:
    entry = write_entry(name, config, DIALECTS["multitap"]).entry or {}
    unwritten = {*config.given_fields} - entry.keys() - {"transport"}
    settings = {key: getattr(config, key) for key in sorted(unwritten) if getattr(config, key)}
    fields, left_out = without_loose_settings({**settings, **entry})
    inputs: dict[str, DraftInput] = {}

    def ask(key: str, about: str, *, secret: bool, default: object = None) -> str:
        # the name becomes an option, a question and part of a reference to the vault
        option = _ODD.sub("-", key)[:_LONGEST_NAME].strip("-.") or "value"
        inputs[option] = DraftInput(
            name=option,
            description=clean(about),
            secret=secret,
            default=None if default is None else str(default),
        )
        return f"${{input:{option}}}"

    def ask_for(match: re.Match[str]) -> str:
        about = questions.get(match[1], {})
        # secret by default: showing a secret is worse than hiding a name
        secret = about.get("password") is not False or is_telling(match[1])
        text = str(about.get("description", ""))
        return ask(match[1], text, secret=secret, default=about.get("default"))

    def fill_in(key: str, value: Any) -> Any:
        if is_table(value):
            return {name: fill_in(name, member) for name, member in value.items()}
        if is_list(value):
            return [fill_in(key, member) for member in value]
        return _SECRET.sub(ask_for, value) if isinstance(value, str) else value

    def blank(key: str, text: str) -> str:
        scheme, _, rest = text.rpartition(" ")
        if "${" in rest or not _BLANK.fullmatch(rest):
            return text
        secret = is_telling(key) or bool(scheme)
        return f"{scheme} {ask(key, text, secret=secret)}".lstrip()

    fields = fill_in("", fields)
    for table in ("env", "headers"):
        if is_table(members := fields.get(table)):
            fields[table] = {key: blank(key, str(text)) for key, text in members.items()}
    return ServerDraft(
        name=name,
        fields=fields,
        inputs=tuple(inputs.values()),
        provenance=provenance,
        warnings=(*warnings, *_left_out(left_out)),
    )


def _left_out(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        text = clean(str(masked(key, value)))
        yield f"`{key}` = {text} is left out: only you can set that"


def _parse_add(program: str, arguments: list[str], provenance: Provenance) -> ServerDraft:
    options: dict[str, list[str]] = {}
    rest: list[str] = []
    queue = [*arguments]
    while queue:
        word = queue.pop(0)
        key, sign, value = word.partition("=")
        # once the command has begun, options are its own: `add fs npx -y server`
        in_command = len(rest) > 1 and not _ADDRESS.fullmatch(rest[1])
        if word == "--" or in_command or not word.startswith("-"):
            rest += [*queue] if word == "--" else [word]
            queue = [] if word == "--" else queue
        elif key in _VALUED and (sign or queue):
            values = options.setdefault(_VALUED[key], [])
            values.append(value if sign else queue.pop(0))
            # Claude Code accepts several variables after one `-e`
            while _VALUED[key] == "env" and queue and _PAIR.match(queue[0]):
                values.append(queue.pop(0))
        elif word not in _FLAGS:
            hint = "leave it out, or write `multitap add NAME -- COMMAND …`"
            raise ConfigError(f"the option {word!r} of {program} is not understood", hint=hint)
    if not rest:
        raise ConfigError(f"the `{program} mcp add` line names no server")
    return ServerDraft(name=rest[0], fields=_fields(rest[1:], options), provenance=provenance)


def _fields(rest: list[str], options: Mapping[str, list[str]]) -> dict[str, Any]:
    last = {key: values[-1] for key, values in options.items() if values}
    url = last.get("url") or (rest[0] if rest and _ADDRESS.fullmatch(rest[0]) else None)
    fields: dict[str, Any] = {}
    if url:
        headers = dict(_header(text) for text in options.get("headers", ()))
        if bearer := last.get("bearer"):
            headers["Authorization"] = f"Bearer ${{env:{bearer}}}"
        port = last.get("callback_port", "")
        login = {"client_id": last.get("client_id"), "callback_port": port.isdigit() and int(port)}
        oauth = {key: value for key, value in login.items() if value}
        sse = last.get("transport") if last.get("transport") == "sse" else None
        fields = {"url": url, "transport": sse, "headers": headers, "oauth": oauth}
    elif rest:
        fields = {"command": rest[0], "args": rest[1:]}
    else:
        raise ConfigError("the line has neither a command nor an address")
    pairs = (text.partition("=") for text in options.get("env", ()))
    if not url:
        fields["env"] = {name: value for name, _, value in pairs}
    tools = {key: last[key].split(",") for key in ("allow", "deny") if key in last}
    fields |= {"description": last.get("description"), "filter": tools}
    # milliseconds, as in Gemini CLI
    if (span := last.get("timeout", "")).isdigit():
        fields["timeout"] = int(span) / 1000
    return {key: value for key, value in fields.items() if value}


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        name, _, value = text.partition("=")
    return name.strip(), value.strip()


_SCHEMES = frozenset({"cursor", "vscode", "vscode-insiders", "lmstudio", "kiro"})
_PAGES = re.compile(r".*(?:/install-mcp|/mcp/install|/mcp/add)/?")
"""Pages that redirect the browser to such a link."""


def is_install_link(address: str) -> bool:
    """Whether an address describes a server, instead of being one."""
    try:
        parts = urlsplit(_target(address))
    except ValueError:
        return False
    if parts.scheme in _SCHEMES:
        return True
    query = parse_qs(parts.query)
    return bool(_PAGES.fullmatch(parts.path)) and {"name", "config"} <= query.keys()


def _target(address: str) -> str:
    """Where a page such as `https://vscode.dev/redirect?url=vscode:…` leads."""
    parts = urlsplit(address)
    if not parts.path.rstrip("/").endswith("/redirect"):
        return address
    leads = parse_qs(parts.query).get("url", [""])[0]
    return leads if urlsplit(leads).scheme in _SCHEMES else address


def snippet_in(address: str) -> tuple[str | None, str]:
    """The name in an install link, if it has one, and the server as JSON.

    Raises:
        ConfigError: There is no server in it.
    """
    query = urlsplit(_target(address)).query
    values = {name: values[0] for name, values in parse_qs(query).items()}
    text = _json(values["config"]) if "config" in values else _json(unquote(query))
    if text is None:
        raise ConfigError(
            "there is no server in this link",
            hint="expected a name, and `config` in JSON or base64; was the whole link copied?",
        )
    # VS Code has inputs beside the server, where the snippet parser does not look
    if (inputs := _list(values.get("inputs", ""))) is not None:
        text = json.dumps({**json.loads(text), "name": values.get("name", ""), "inputs": inputs})
    return values.get("name"), text


def _json(text: str) -> str | None:
    """The JSON object in a text, plain or in base64."""
    return next((text_ for text_ in (text, _from_base64(text)) if _is_object(text_)), None)


def _list(text: str) -> list[object] | None:
    """The inputs of VS Code, which are beside the server."""
    try:
        value: object = json.loads(text)
    # a stranger's JSON may be nested thousands of levels deep
    except (ValueError, RecursionError):
        return None
    return value if is_list(value) else None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _from_base64(text: str) -> str:
    # links vary: URL-safe or not, with `+` decoded to a blank, without padding
    plain = text.replace(" ", "+").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4)).decode()
    except ValueError:
        return ""
