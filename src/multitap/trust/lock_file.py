"""`multitap.lock`: the tool definitions that a person relies on, in a file to commit."""

import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from multitap.config.documents import is_list, is_table
from multitap.errors import MultitapError, quoted
from multitap.files import Stamp, file_stamp, read_up_to, stamp_of

_NAMED = {"prompt": "name", "resource": "uri", "template": "uriTemplate"}
"""By kind: the field that identifies an offer."""
_OF_DATA = frozenset({"size", "lastModified"})
"""Fields of a resource, and of its annotations, that follow its data."""
_VARYING = re.compile(
    r"(?i)time(?:stamp)?$|date$|(?:updated|modified|generated|created|expires|fetched)(?:_?at)?$"
    r"|etag$|nonce$|(?:request|trace|span|correlation)[_-]?id$|traceparent$|ttl(?:_?ms)?$"
)
"""Names in `_meta` that stand for a moment or for one request."""
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ][\d:.,]+(?: ?Z|[+-][\d:]+)?)?|\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT"
    r"|(?:W/)?\"?[0-9a-fA-F][0-9a-fA-F-]{5,80}\"?|[\d.]+"
)
"""Moments, numbers and identifiers in hex: nothing that a model could follow."""
_DEEPEST = 16  # levels of `_meta` in which moments are found
_LIBRARIES = frozenset({"fastmcp", "_fastmcp"})
"""Members of `_meta` that a library adds to every tool, and that its versions call differently."""
INSTRUCTIONS = "instructions"
"""The key of a server's instructions."""

_encode = msgspec.json.Encoder(order="sorted").encode


def pinned_part(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition with every member, without what changes by itself.

    Clients show models whatever they like of it, so nothing else may change unnoticed.
    """
    part = dict(definition)
    if (meta := _lasting(part.pop("_meta", None))) is not None:
        part["_meta"] = meta
    return part


def _lasting(value: Any, name: str = "", depth: int = 0) -> Any:
    """A value in `_meta` without moments and identifiers of requests; None if none is left."""
    if depth > _DEEPEST:
        return value
    if is_table(value):
        members = {key: _lasting(member, key, depth + 1) for key, member in value.items()}
        lasting = {key: member for key, member in members.items() if member is not None}
        # a library that labels tools, and has no label for this one
        if name in _LIBRARIES and not any(lasting.values()):
            return None
        return lasting or None
    if is_list(value):
        return [_lasting(member, depth=depth + 1) for member in value]
    return None if _VARYING.search(name) and _is_moment(value) else value


def _is_moment(value: Any) -> bool:
    return not isinstance(value, bool) and _MOMENT.fullmatch(str(value)) is not None


def other_parts(
    lists: Mapping[str, Iterable[Mapping[str, Any]]], instructions: str | None
) -> dict[str, dict[str, Any]]:
    """The pinned parts of offers that are not tools, by kind and name: `prompt NAME`."""
    parts: dict[str, dict[str, Any]] = {}
    for kind, definitions in lists.items():
        for definition in definitions:
            if isinstance(name := definition.get(_NAMED[kind]), str):
                parts.setdefault(f"{kind} {name}", _without_data(pinned_part(definition)))
    if instructions:
        parts[INSTRUCTIONS] = {"name": INSTRUCTIONS, "description": instructions}
    return parts


def _without_data(part: dict[str, Any]) -> dict[str, Any]:
    """An offer without what follows the data that it stands for."""
    lasting = _without_moments(part)
    if is_table(annotations := lasting.get("annotations")):
        lasting["annotations"] = _without_moments(annotations)
    return lasting


def _without_moments(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in table.items() if key not in _OF_DATA or not _is_moment(value)
    }


def comes_and_goes(key: str) -> bool:
    """Whether new ones of its kind need no review: resources are data."""
    return key.startswith("resource ")


def canonical(value: object) -> bytes:
    """Canonical JSON: sorted keys, no blanks, UTF-8."""
    try:
        return _encode(value)
    except (ValueError, TypeError, RecursionError):  # such as half of a surrogate pair
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr).encode()


def digest(part: Mapping[str, Any]) -> str:
    """The SHA-256 of a pinned part."""
    return sha256(canonical(part)).hexdigest()


FILE = "multitap.lock"
VERSION = 1
LARGEST = 64 * 1024 * 1024
"""The maximum size of a file, in bytes."""
UNKNOWN = "unknown"
_UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    "\u2028-\u202f\u205f-\u206f\u3000\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000e0000-\U000e0fff]"
)
"""Characters that an editor or a review page does not show; line breaks are layout."""


class LockError(MultitapError):
    """A lock file cannot be used; the message says which, where and why."""


class LockNotWritten(LockError):
    """A lock file cannot be written, although its content seems valid."""


class LockedPackage(msgspec.Struct, frozen=True):
    """The package that a launcher such as `npx` really started."""

    kind: str
    name: str
    version: str = UNKNOWN
    integrity: str = UNKNOWN
    """A digest of the content, in the format of its package manager."""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def same_as(self, other: "LockedPackage") -> bool:
        """Whether all values that are known of both are equal."""
        pairs = ((self.version, other.version), (self.integrity, other.integrity))
        return (self.kind, self.name) == (other.kind, other.name) and all(
            ours == theirs or UNKNOWN in {ours, theirs} for ours, theirs in pairs
        )


class ToolPin(
    msgspec.Struct, frozen=True, eq=False, forbid_unknown_fields=True, omit_defaults=True
):
    """One tool as it was seen."""

    sha256: str
    exposed: str = ""
    """The name that callers use."""
    definition: dict[str, Any] | None = None
    """None if it was too long to keep, or was not read: a gateway keeps only digests in memory."""

    def __eq__(self, other: object) -> bool:
        # without the definition, which follows from its digest
        return (
            isinstance(other, ToolPin)
            and self.sha256 == other.sha256
            and self.exposed == other.exposed
        )

    def __ne__(self, other: object) -> bool:
        return not self == other  # a struct has one of its own, by identity

    def __hash__(self) -> int:
        return hash((self.sha256, self.exposed))


class ServerPins(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One server's accepted definitions, and those that wait for review."""

    identity: str = ""
    """A digest of its command or URL; not in a project's file, because paths differ."""
    naming: str = ""
    """The naming of the exposed names."""
    package: LockedPackage | None = None
    tools: dict[str, ToolPin] = {}
    """Accepted tools, by the server's own names."""
    pending: dict[str, ToolPin] = {}
    """Tools that are new or changed since."""
    pending_package: LockedPackage | None = None
    others: dict[str, ToolPin] | None = None
    """Prompts, resources, templates and instructions, by kind and name; None if never pinned."""
    pending_others: dict[str, ToolPin] = {}

    @property
    def waiting(self) -> dict[str, ToolPin]:
        """Everything that waits for review: tools by name, others by kind and name."""
        waiting = dict(self.pending)
        for key, pin in self.pending_others.items():
            name = key
            while name in waiting:  # a tool may have the name `prompt NAME` to hide a prompt
                name += "*"
            waiting[name] = pin
        return waiting

    def pins(self) -> Iterator[tuple[str, ToolPin]]:
        """Everything that is pinned or waits for review, by name or key."""
        for pins in (self.tools, self.pending, self.others or {}, self.pending_others):
            yield from pins.items()

    def without_definitions(self) -> "ServerPins":
        """The same pins by their digests alone."""
        return self._with_definitions({})

    def with_definitions(self, stored: "ServerPins | None") -> "ServerPins":
        """The same pins with the definitions that a lock file already has of them."""
        if stored is None:
            return self
        definitions = {pin.sha256: pin.definition for _, pin in stored.pins()}
        own = {pin.sha256: pin.definition for _, pin in self.pins() if pin.definition is not None}
        return self._with_definitions({**definitions, **own})

    def _with_definitions(self, definitions: Mapping[str, dict[str, Any] | None]) -> "ServerPins":
        def renew(pins: Mapping[str, ToolPin]) -> dict[str, ToolPin]:
            return {
                key: ToolPin(pin.sha256, pin.exposed, definitions.get(pin.sha256))
                for key, pin in pins.items()
            }

        return msgspec.structs.replace(
            self,
            tools=renew(self.tools),
            pending=renew(self.pending),
            others=None if self.others is None else renew(self.others),
            pending_others=renew(self.pending_others),
        )


class LockContent(msgspec.Struct, frozen=True):
    """The content of a lock file."""

    servers: dict[str, ServerPins] = {}


class LockedServers(MutableMapping[str, ServerPins]):
    """The entries of a lock file that is being changed.

    Each is decoded when it is read, and encoded when it is replaced: all others are written as they
    are, because a file may have many thousand tools.
    """

    def __init__(self, entries: dict[str, bytes]) -> None:
        self._entries = entries
        self.changed: dict[str, ServerPins | None] = {}
        """The new entries; None for those that were removed."""

    def __getitem__(self, server: str) -> ServerPins:
        return _decode_entry(self._entries[server])

    def __setitem__(self, server: str, pins: ServerPins) -> None:
        self._entries[server] = _encode_entry(pins)
        self.changed[server] = pins

    def __delitem__(self, server: str) -> None:
        del self._entries[server]
        self.changed[server] = None

    def __iter__(self) -> Iterator[str]:
        return iter([*self._entries])

    def __len__(self) -> int:
        return len(self._entries)

    def text(self) -> bytes:
        """The text of the whole file."""
        text = [b'{\n "servers": {']
        for server in sorted(self._entries):
            text += [b"\n  ", visible_json(server).encode(), b": ", self._entries[server], b","]
        text[-1:] = [b"\n }"] if self._entries else [text[-1], b"}"]
        text.append(b',\n "version": %d\n}\n' % VERSION)
        return b"".join(text)


class LockDraft(msgspec.Struct, frozen=True):
    """A lock file that is being changed."""

    servers: LockedServers


class LockFile:
    """One file of pins; each change reads it first, one change at a time.

    Args:
        path: Its path; it may not exist yet.
        is_private: Whether only its owner may read it.
    """

    def __init__(self, path: Path, *, is_private: bool = True) -> None:
        self.path = path
        self._mode = 0o600 if is_private else 0o644
        self._known: tuple[Stamp, dict[str, ServerPins]] = (None, {})
        """The last valid content that was read or written, without definitions."""

    def read(self) -> LockContent:
        """Its content; empty if it does not exist.

        Raises:
            LockError: It cannot be read, or is damaged.
        """
        _, raw = self._load()
        return LockContent(dict(_parse(self.path, raw)))

    def read_digests(self) -> LockContent:
        """Its content without definitions.

        Raises:
            LockError: It cannot be read, or is damaged.
        """
        stamp = self.stamp()
        last_stamp, digests = self._known
        if stamp is None or stamp != last_stamp:
            digests = self._digests(*self._load())
        return LockContent(digests)

    def stamp(self) -> Stamp:
        """Its stamp, to detect changes."""
        return file_stamp(self.path)

    @contextmanager
    def changing(self) -> Generator[LockDraft]:
        """Change the content; writes nothing if it is unchanged or damaged.

        Raises:
            LockError: It cannot be read or written, or is damaged.
        """
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # locks the folder, because a project should not get another file
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise LockNotWritten(f"{self.path} cannot be written: {exc.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stamp, raw = self._load()
            digests = dict(self._digests(stamp, raw))
            draft = LockDraft(LockedServers(_split(raw)))
            yield draft
            if draft.servers.changed and (text := draft.servers.text()) != raw:
                stamp = self._write(text)
                for server, pins in draft.servers.changed.items():
                    digests.pop(server, None)
                    if pins is not None:
                        digests[server] = pins.without_definitions()
                self._known = (stamp, digests)
        finally:
            os.close(lock)

    def _load(self) -> tuple[Stamp, bytes]:
        """The stamp of the file and its text; None and nothing if it does not exist."""
        # The file may come from a repository: a link could reveal another file in an error, and a
        # pipe would block forever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(self.path, flags)
        except (FileNotFoundError, NotADirectoryError):
            return None, _EMPTY
        except OSError as exc:
            raise LockError(f"{self.path} cannot be read: {exc.strerror}") from None
        status = os.fstat(handle)
        stamp = stamp_of(status)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise LockError(f"{self.path} is not a file")
        with open(handle, "rb") as file:  # noqa: PTH123 - it is open already
            raw = read_up_to(file, LARGEST)
        if len(raw) > LARGEST:
            raise LockError(f"{self.path} is larger than {LARGEST:,} bytes")
        return stamp, raw

    def _digests(self, stamp: Stamp, raw: bytes) -> dict[str, ServerPins]:
        last_stamp, digests = self._known
        # what this process has checked or written itself is not checked again
        if stamp is None or stamp != last_stamp:
            # one server after the other: the definitions of all would take much memory
            digests = {
                server: pins.without_definitions() for server, pins in _parse(self.path, raw)
            }
            self._known = (stamp, digests)
        return digests

    def _write(self, text: bytes) -> Stamp:
        try:
            handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        except OSError as exc:
            raise LockNotWritten(f"{self.path} cannot be written: {exc.strerror}") from None
        fresh = Path(name)
        try:
            with open(handle, "wb") as file:  # noqa: PTH123 - it is open already
                os.fchmod(file.fileno(), self._mode)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                stamp = stamp_of(os.fstat(file.fileno()))
            fresh.replace(self.path)
        except OSError as exc:
            fresh.unlink(missing_ok=True)
            raise LockNotWritten(f"{self.path} cannot be written: {exc.strerror}") from None
        return stamp


def visible_json(value: Any) -> str:
    """JSON for people: sorted, one value per line, with hidden characters as escapes."""
    try:
        text = msgspec.json.format(_encode(value), indent=1).decode()
    except (ValueError, TypeError, RecursionError):  # as in `canonical`
        plain = msgspec.to_builtins(value)
        text = json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text  # in JSON, all other control characters are escapes anyway
    return _UNSEEN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


class _Outline(msgspec.Struct, forbid_unknown_fields=True):
    """A lock file whose entries are not decoded."""

    version: int = 0
    servers: dict[str, msgspec.Raw] = {}


_EMPTY = b'{"version": %d}' % VERSION
_decode_outline = msgspec.json.Decoder(_Outline).decode
_decode_pins = msgspec.json.Decoder(ServerPins).decode


def _split(raw: bytes) -> dict[str, bytes]:
    """The text of each entry."""
    return {server: bytes(entry) for server, entry in _outline(raw).servers.items()}


def _outline(raw: bytes) -> _Outline:
    try:
        return _decode_outline(raw)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # a hostile server may have sent half of a surrogate pair, which only `json` accepts
        tables = json.loads(raw.decode())
        if is_table(tables) and is_table(servers := tables.get("servers")):
            entries = {
                server: msgspec.Raw(_encode_entry(entry)) for server, entry in servers.items()
            }
            tables = {**tables, "servers": entries}
        return msgspec.convert(tables, _Outline)


def _encode_entry(entry: Any) -> bytes:
    # indented as deep as it is in the file
    return visible_json(entry).replace("\n", "\n  ").encode()


def _decode_entry(entry: bytes | msgspec.Raw) -> ServerPins:
    try:
        return _decode_pins(entry)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(bytes(entry).decode()), ServerPins)


def _parse(path: Path, raw: bytes) -> Iterator[tuple[str, ServerPins]]:
    """The entries of a file, each of them checked."""
    hint = "restore it from version control, or delete it to pin everything again"
    try:
        outline = _outline(raw)
        if outline.version != VERSION:
            raise LockError(
                f"{path}:1: its version is {outline.version}, and only {VERSION} is understood",
                hint="update multitap, or delete the file to pin everything again",
            )
        for server, entry in outline.servers.items():
            pins = _decode_entry(entry)
            _check_digests(path, raw, server, pins, hint)
            yield server, pins
    except json.JSONDecodeError as exc:
        raise LockError(f"{path}:{exc.lineno}:{exc.colno}: {exc.msg}", hint=hint) from None
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise LockError(f"{path}:{line}: is not UTF-8 text", hint=hint) from None
    except msgspec.ValidationError as exc:
        raise LockError(f"{path}:1: {exc}", hint=hint) from None
    except (RecursionError, ValueError):
        raise LockError(f"{path}:1: is not a lock file", hint=hint) from None


def _check_digests(path: Path, raw: bytes, server: str, pins: ServerPins, hint: str) -> None:
    for tool, pin in pins.pins():
        if pin.definition is not None and digest(pin.definition) != pin.sha256:
            line = raw.count(b"\n", 0, max(0, raw.find(pin.sha256.encode()))) + 1
            raise LockError(
                f"{path}:{line}: the `sha256` of {quoted(tool)} of {quoted(server)} is not "
                "that of its `definition`",
                hint=hint,
            )
