"""Reads the manifest of an unpacked bundle into a server draft."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from multitap.config.edit.drafts import DraftInput, ServerDraft
from multitap.errors import quoted
from multitap.files import read_regular
from multitap.published.bundle_file import MANIFEST, MAX_MANIFEST, BadBundle, bundles_folder, unpack
from multitap.published.server_json import as_literal, clean, option_name, server_name

KINDS = frozenset({"node", "python", "binary", "uv"})
PLATFORM = {"linux": "linux", "darwin": "darwin", "win32": "win32"}.get(sys.platform, "linux")
MOST = 128  # arguments or settings; no honest manifest has more
_VARIABLE = re.compile(r"\$\{([^{}]{1,200})\}")
_SETTING = "user_config."


def read_bundle(path: Path, *, digest: str | None = None, into: Path | None = None) -> ServerDraft:
    """Unpack a bundle and make a draft of its server.

    Raises:
        BadBundle: It must not be used, and why.
    """
    place = into or bundles_folder()
    # an existing folder belongs to a server that was added before, and must stay
    before = {path.name for path in place.iterdir()} if place.is_dir() else set[str]()
    folder = unpack(path, digest=digest, into=place)
    try:
        draft = read_manifest(folder)
        return draft if folder.name in before else replace(draft, unpacked=folder)
    except BadBundle:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def read_manifest(folder: Path) -> ServerDraft:
    """The draft for the manifest in a folder.

    Raises:
        BadBundle: It does not say how to run the server, or is not allowed.
    """
    content = _decode(folder)
    server = _table(content.get("server"))
    kind = server.get("type")
    if kind not in KINDS:
        raise BadBundle(f"server.type is {quoted(str(kind))}: expected node, python, binary or uv")
    platforms = _table(content.get("compatibility")).get("platforms")
    if isinstance(platforms, list) and platforms and PLATFORM not in platforms:
        raise BadBundle(f"the bundle is for {', '.join(map(clean, platforms))} only")  # pyright: ignore[reportUnknownArgumentType]
    entry = _entry(folder, server.get("entry_point"))
    config = _table(server.get("mcp_config"))
    override = _table(_table(config.get("platform_overrides")).get(PLATFORM))
    config = {**_usual(str(kind), folder, entry), **config, **override}
    settings = dict(_settings(_table(content.get("user_config"))))
    fill = _filler(folder, settings)
    command = fill(_text(config.get("command"), "command"))
    fields: dict[str, Any] = {
        "command": _program(command, folder, entry, str(kind)),
        "args": [fill(_text(word, "args")) for word in _list(config.get("args"))],
    }
    if env := {key: fill(str(value)) for key, value in _table(config.get("env")).items()}:
        fields["env"] = env
    name = server_name(_text(content.get("name"), "name"))
    about = clean(content.get("description"))
    note = f"{about} (bundle {clean(content.get('version'))} in {folder})"
    return ServerDraft(
        name=name, fields=fields, inputs=tuple(settings.values()), provenance="bundle", note=note
    )


def _usual(kind: str, folder: Path, entry: Path) -> dict[str, Any]:
    """The default command for a server of this kind."""
    match kind:
        case "node":
            return {"command": "node", "args": [str(entry)]}
        case "python":
            return {"command": "python3", "args": [str(entry)]}
        case "uv":
            return {"command": "uv", "args": ["run", "--directory", str(folder), str(entry)]}
        case _:
            return {"command": str(entry), "args": []}


def _program(command: str, folder: Path, entry: Path, kind: str) -> str:
    """The program; one from the bundle must be inside its folder."""
    if kind == "binary" and "/" not in command and not command.startswith("$"):
        return str(entry)
    if "/" in command:
        # resolved: a link in the bundle must not lead out of it either
        inside = (folder / command).resolve()
        if not inside.is_relative_to(folder.resolve()):
            raise BadBundle(f"its command {quoted(command)} is not in the bundle")
        return str(inside)
    # without a slash, it is a program of the system, such as `node`
    return command


def _entry(folder: Path, value: object) -> Path:
    text = _text(value, "entry_point")
    path = (folder / text).resolve()
    if not path.is_relative_to(folder.resolve()) or path == folder.resolve():
        raise BadBundle(f"its entry_point {quoted(text)} leads out of the bundle")
    if not path.is_file():
        raise BadBundle(f"its entry_point {quoted(text)} is not there")
    return path


def _settings(table: Mapping[str, Any]) -> Iterator[tuple[str, DraftInput]]:
    if len(table) > MOST:
        raise BadBundle(f"user_config has more than {MOST} entries")
    names: set[str] = set()
    for key, value in table.items():
        setting = _table(value)
        name = option_name(key)
        while name in names:
            name = f"{name}-2"
        names.add(name)
        default = setting.get("default")
        yield (
            key,
            DraftInput(
                name=name,
                description=clean(setting.get("description") or setting.get("title")),
                secret=setting.get("sensitive") is True,
                required=setting.get("required") is True,
                default=_default(default),
                choices=("true", "false") if setting.get("type") == "boolean" else (),
                multiple=setting.get("multiple") is True,
                path=setting.get("type") in {"directory", "file"},
            ),
        )


def _default(value: Any) -> str | None:
    if value is None or isinstance(value, list | dict):
        return None
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _replace_variables(text, _place)


def _place(name: str) -> str | None:
    """A folder of the user that a manifest may name."""
    home = str(Path.home())
    places = {
        "HOME": home,
        "DESKTOP": f"{home}/Desktop",
        "DOCUMENTS": f"{home}/Documents",
        "DOWNLOADS": f"{home}/Downloads",
        "/": "/",
        "pathSeparator": "/",
    }
    return as_literal(places[name]) if name in places else None


def _filler(folder: Path, settings: Mapping[str, DraftInput]) -> Callable[[str], str]:
    """Expands a manifest's variables; unknown ones stay as text."""

    def value(name: str) -> str | None:
        if name == "__dirname":
            return as_literal(str(folder))
        if name.startswith(_SETTING):
            setting = settings.get(name.removeprefix(_SETTING))
            if setting is None:
                raise BadBundle(f"{quoted(f'${{{name}}}')} is not in user_config")
            return f"${{input:{setting.name}}}"
        return _place(name)

    return lambda text: _replace_variables(text, value)


def _replace_variables(text: str, value: Callable[[str], str | None]) -> str:
    """A text with its variables replaced; everything else in it is literal."""
    parts: list[str] = []
    end = 0
    for match in _VARIABLE.finditer(text):
        if (part := value(match[1])) is not None:
            parts += (as_literal(text[end : match.start()]), part)
            end = match.end()
    return "".join((*parts, as_literal(text[end:])))


def _decode(folder: Path) -> Mapping[str, Any]:
    path = folder / MANIFEST
    try:
        data = read_regular(path, MAX_MANIFEST)
        content: Any = msgspec.json.decode(data)
    except OSError as exc:
        raise BadBundle(f"its {MANIFEST} cannot be read: {exc.strerror}") from None
    except (msgspec.DecodeError, RecursionError) as exc:
        raise BadBundle(f"its {MANIFEST} is not JSON: {exc}") from None
    if not isinstance(content, dict):
        raise BadBundle(f"its {MANIFEST} is not a JSON object")
    return _table(content)


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadBundle(f"its {MANIFEST} has no usable `{key}`")
    return value


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]


def _list(value: Any) -> Sequence[Any]:
    if isinstance(value, list) and len(value) > MOST:  # pyright: ignore[reportUnknownArgumentType]
        raise BadBundle(f"a list in its {MANIFEST} has more than {MOST} entries")
    return value if isinstance(value, list) else ()  # pyright: ignore[reportUnknownVariableType]
