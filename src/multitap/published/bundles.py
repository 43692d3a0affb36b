"""`.mcpb` bundles: unpacks them, and reads their manifest into a server draft.

Nothing in a bundle can escape its folder.
"""

import os
import re
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec.structs import replace

from multitap.config.edit.drafts import DraftInput, ServerDraft
from multitap.errors import ConfigError, quoted
from multitap.files import bundles_folder, open_regular, read_regular
from multitap.published.server_json import as_literal, clean, option_name, server_name, table_of

if TYPE_CHECKING:
    import zipfile

# Against archives made to fill a disk. Bundles carry their `node_modules` or wheels, so honest ones
# are large and have many files.
MAX_FILE = 512 * 1024 * 1024
MAX_UNPACKED = 1024 * 1024 * 1024
MOST_ENTRIES = 50_000
MOST_TIMES = 200
"""How much larger an entry may be than it is packed, beyond a first `FREE` bytes."""
FREE = 1024 * 1024
LONGEST_PATH = 1024
MANIFEST = "manifest.json"
MAX_MANIFEST = 1024 * 1024

_CHUNK = 256 * 1024
_ENCRYPTED = 0x1
_EXECUTABLE = 0o111
_BAD_MODES = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
_FETCH = "fetch it again from its publisher"
KINDS = frozenset({"node", "python", "binary", "uv"})
PLATFORM = {"linux": "linux", "darwin": "darwin", "win32": "win32"}.get(sys.platform, "linux")
MOST = 128  # arguments or settings; no honest manifest has more
_VARIABLE = re.compile(r"\$\{([^{}]{1,200})\}")
_SETTING = "user_config."


class BadBundle(ConfigError):
    """A bundle that must not be used; nothing of it was kept."""


def unpack(path: Path, *, digest: str | None = None, into: Path | None = None) -> Path:
    """The folder of an unpacked bundle; one that was unpacked before is reused.

    Raises:
        BadBundle: It must not be used, and why.
    """
    folder = into or bundles_folder()
    try:
        with open_regular(path) as file:
            return _keep(file, path.name, digest, folder)
    except OSError as exc:
        raise BadBundle(f"{path} cannot be read: {exc.strerror}") from None


def _keep(file: BinaryIO, name: str, digest: str | None, folder: Path) -> Path:
    # one handle for all steps: exactly what was checked is unpacked
    import zipfile  # noqa: PLC0415 - a gateway only asks where bundles are

    actual = _digest(file, name)
    if digest is not None and actual != digest.lower():
        raise BadBundle(f"{name} has the digest {actual}, not {digest}", hint=_FETCH)
    home = folder / actual
    # named by its digest, so it has the same content
    if home.is_dir():
        return home
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Unpacked aside and renamed when complete: a folder named after its digest is always
    # complete.
    draft = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder))
    try:
        _unpack(file, draft, name)
        _settle(draft, home)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as exc:
        raise BadBundle(f"{name} cannot be unpacked: {exc}", hint=_FETCH) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return home


def _settle(draft: Path, home: Path) -> None:
    try:
        draft.rename(home)
    except OSError:
        if not home.is_dir():  # or another process unpacked the same one meanwhile
            raise


def _digest(file: BinaryIO, name: str) -> str:
    digest, size = sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if size > MAX_FILE:
            raise BadBundle(f"{name} has more than {MAX_FILE:,} bytes")
    file.seek(0)
    return digest.hexdigest()


def _unpack(file: BinaryIO, folder: Path, name: str) -> None:
    import zipfile  # noqa: PLC0415 - see `unpack`

    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        _check_all(entries, name)
        left = MAX_UNPACKED
        for entry in entries:
            target = folder / entry.filename
            if entry.is_dir():
                target.mkdir(mode=0o700, parents=True, exist_ok=True)
                continue
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            left -= _write(archive, entry, target, min(left, entry.file_size))


def _write(archive: "zipfile.ZipFile", entry: "zipfile.ZipInfo", target: Path, limit: int) -> int:
    """Write one file; its stated size is not trusted."""
    # of its permissions, only whether it is a program counts: others get none
    mode = 0o700 if (entry.external_attr >> 16) & _EXECUTABLE else 0o600
    # O_EXCL and O_NOFOLLOW although names were checked: never write over a file or through a
    # link.
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    size = 0
    with os.fdopen(descriptor, "wb") as out, archive.open(entry) as packed:
        while chunk := packed.read(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise BadBundle(f"{quoted(entry.filename)} is larger than it says")
            out.write(chunk)
    return size


def _check_all(entries: "list[zipfile.ZipInfo]", name: str) -> None:
    if len(entries) > MOST_ENTRIES:
        raise BadBundle(f"{name} has more than {MOST_ENTRIES:,} entries")
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED:
        raise BadBundle(f"{name} would take more than {MAX_UNPACKED:,} bytes")
    files: set[str] = set()
    for entry in entries:
        for reason in _objections(entry):
            raise BadBundle(f"{name}: {quoted(entry.filename)} {reason}")
        # Case does not count on every file system: there, `A` would overwrite the `a` that was
        # checked.
        key = entry.filename.rstrip("/").casefold()
        if key in files:
            raise BadBundle(f"{name}: {quoted(entry.filename)} appears twice")
        files.add(key)
    inner = {entry.filename.casefold() for entry in entries if not entry.is_dir()}
    for entry in entries:
        above = map(str, PurePosixPath(entry.filename.casefold()).parents)
        if not inner.isdisjoint(above):
            raise BadBundle(f"{name}: {quoted(entry.filename)} is inside a file")
    manifest = next((entry for entry in entries if entry.filename == MANIFEST), None)
    if manifest is None:
        raise BadBundle(f"{name} has no {MANIFEST}")
    if manifest.file_size > MAX_MANIFEST:
        raise BadBundle(f"{name}: its {MANIFEST} has more than {MAX_MANIFEST:,} bytes")


def _objections(entry: "zipfile.ZipInfo") -> Iterator[str]:
    """Why an entry must not be unpacked."""
    path, mode = entry.filename, entry.external_attr >> 16
    # Python cuts the name at a NUL, other programs do not.
    if entry.orig_filename != path and "\0" in entry.orig_filename:
        yield "has a NUL character in its name"
    if not path or len(path) > LONGEST_PATH or not path.isprintable():
        yield "has a name that cannot be used"
    if path.startswith("/") or "\\" in path or path[1:2] == ":":
        yield "has an absolute path"
    if ".." in path.split("/"):
        yield "leads out of the bundle"
    if entry.flag_bits & _ENCRYPTED:
        yield "is encrypted"
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFLNK:
        yield "is a link"
    elif kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        yield "is neither a file nor a folder"
    if mode & _BAD_MODES:
        yield "would run with somebody else's rights"
    if entry.file_size > FREE + MOST_TIMES * entry.compress_size:
        yield f"would be more than {MOST_TIMES} times as large as it is packed"


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
    server = table_of(content.get("server"))
    kind = server.get("type")
    if kind not in KINDS:
        raise BadBundle(f"server.type is {quoted(str(kind))}: expected node, python, binary or uv")
    platforms = table_of(content.get("compatibility")).get("platforms")
    if isinstance(platforms, list) and platforms and PLATFORM not in platforms:
        raise BadBundle(f"the bundle is for {', '.join(map(clean, platforms))} only")  # pyright: ignore[reportUnknownArgumentType]
    entry = _entry(folder, server.get("entry_point"))
    config = table_of(server.get("mcp_config"))
    override = table_of(table_of(config.get("platform_overrides")).get(PLATFORM))
    config = {**_usual(str(kind), folder, entry), **config, **override}
    settings = dict(_settings(table_of(content.get("user_config"))))
    fill = _filler(folder, settings)
    command = fill(_text(config.get("command"), "command"))
    fields: dict[str, Any] = {
        "command": _program(command, folder, entry, str(kind)),
        "args": [fill(_text(word, "args")) for word in _list(config.get("args"))],
    }
    if env := {key: fill(str(value)) for key, value in table_of(config.get("env")).items()}:
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
        setting = table_of(value)
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
    return table_of(content)


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadBundle(f"its {MANIFEST} has no usable `{key}`")
    return value


def _list(value: Any) -> Sequence[Any]:
    if isinstance(value, list) and len(value) > MOST:  # pyright: ignore[reportUnknownArgumentType]
        raise BadBundle(f"a list in its {MANIFEST} has more than {MOST} entries")
    return value if isinstance(value, list) else ()  # pyright: ignore[reportUnknownVariableType]
