"""Tables of settings, whose values are checked when they are made, from a file or in Python.

A Struct's own constructor checks nothing. The readers of files add file and line to a mistake.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec
from msgspec import NODEFAULT, Meta, Struct, structs

from multitap.config.documents import kind_in_words
from multitap.config.durations import expectation, seconds
from multitap.config.problems import did_you_mean
from multitap.config.secrets import masked
from multitap.errors import ConfigError

_Model = TypeVar("_Model", bound="ConfigModel")
# a `repr` ends up in logs and tracebacks: the first are secret as a whole, the others in parts
_HIDDEN = frozenset({"api_key", "assertion", "client_secret", "env", "headers", "private_key"})
_MASKED = frozenset({"args", "base_url", "metadata_url", "url"})
_NOUNS: Mapping[Any, str] = {
    bool: "`true` or `false`",
    float: "a number",
    int: "a whole number",
    str: "a string",
    Path: "a path",
}

if TYPE_CHECKING:
    Texts = Sequence[str]
    Paths = Sequence[Path]
else:  # a list is converted: what is frozen has tuples
    Texts = tuple[str, ...]
    Paths = tuple[Path, ...]

FieldMistake = tuple[str, str]
"""A field, or an empty text for all of them together, and what is wrong with it."""


class Mistake(NamedTuple):
    """A value that cannot be used; never contains the value, which may be secret."""

    path: tuple[str | int, ...]
    message: str
    expected: str | None = None
    choices: tuple[str, ...] = ()


class InvalidSettings(ConfigError, ValueError):
    """Values that cannot be used."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        first = mistakes[0]
        key = ".".join(map(str, first.path))
        super().__init__(f"`{key}`: {first.message}" if key else first.message)
        self.mistakes = mistakes


class ConfigModel(Struct, frozen=True, kw_only=True, dict=True):
    """A frozen table of settings; what is kept beside its fields, no file can set.

    Plain values are converted: lists, tables, paths in texts, durations such as "1m30s".

    Raises:
        InvalidSettings: A value cannot be used; names its key.
    """

    def __post_init__(self) -> None:
        mistakes: list[Mistake] = []
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            # defaults are valid, and most of about a hundred fields have theirs
            if value is not field.default:
                checked = _value(field.type, value, (field.name,), mistakes)
                if checked is not value:
                    # frozen, but nobody else has seen it yet
                    structs.force_setattr(self, field.name, checked)
        if not mistakes:
            mistakes = [
                Mistake((name,) if name else (), message) for name, message in self.mistakes()
            ]
        if mistakes:
            raise InvalidSettings(mistakes)

    @property
    def beside(self) -> dict[str, Any]:
        """What is kept beside the fields."""
        return vars(self)  # pyright: ignore[reportReturnType] - a dictionary, with `dict=True`

    def replace(self, **changes: Any) -> Self:
        """A copy with other values."""
        copy = structs.replace(self, **changes)
        # msgspec copies the fields only
        copy.beside.update(self.beside)
        if changes:
            copy.beside["_given"] = self.given_fields | changes.keys()
        return copy

    @property
    def given_fields(self) -> frozenset[str]:
        """The fields that were set explicitly."""
        recorded: frozenset[str] | None = self.beside.get("_given")
        if recorded is not None:
            return recorded
        # Made in Python: what is not the default object itself was passed.
        return frozenset(
            field.name
            for field in fields_of(type(self))
            if not _is_default(field, getattr(self, field.name), exactly=True)
        )

    def mistakes(self) -> Iterator[FieldMistake]:
        """What is wrong with values that have the right types."""
        yield from ()

    def __repr__(self) -> str:
        # about a hundred settings have defaults: those would hide the others in a REPL
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        parts = (
            f"{name}={masked(name, value) if name in _MASKED else value!r}"
            for name, value in values.items()
            if name not in _HIDDEN and name in self.given_fields
        )
        return f"{type(self).__name__}({', '.join(parts)})"


@cache
def fields_of(kind: type[ConfigModel]) -> tuple[structs.FieldInfo, ...]:
    """The fields of a model, with their types."""
    return structs.fields(kind)


def build(kind: type[_Model], table: object) -> tuple[_Model | None, Sequence[Mistake]]:
    """The model of a table; None, with everything that is wrong with it, if it is not valid."""
    mistakes: list[Mistake] = []
    model: _Model | None = _model((kind,), table, (), mistakes)
    return None if mistakes else model, mistakes


Which = Literal["given", "changed", "all"]


def table_of(model: ConfigModel, which: Which = "given") -> dict[str, Any]:
    """The fields of a model as plain data: those that were given, differ from a default, or all."""
    return {
        field.name: plain(value, which)
        for field in fields_of(type(model))
        if _counts(model, field, value := getattr(model, field.name), which)
    }


def _counts(model: ConfigModel, field: structs.FieldInfo, value: object, which: Which) -> bool:
    if which == "given":
        return field.name in model.given_fields
    return which == "all" or not _is_default(field, value)


def plain(value: Any, which: Which = "all") -> Any:
    """A value as plain data: tables, lists, texts and numbers."""
    match value:
        case ConfigModel():
            return table_of(value, which)
        case Mapping():
            return {key: plain(member, which) for key, member in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [plain(member, which) for member in value]  # pyright: ignore[reportUnknownVariableType]
        case Path():
            return str(value)
        case Enum():
            return value.value
        case _:
            return value


def _is_default(field: structs.FieldInfo, value: object, *, exactly: bool = False) -> bool:
    if field.default_factory is not NODEFAULT:
        return bool(value == field.default_factory())
    return value is field.default or (not exactly and bool(value == field.default))


_Path = tuple[str | int, ...]


def _value(kind: Any, value: Any, path: _Path, mistakes: list[Mistake]) -> Any:
    """The value of this type; the same object if there is nothing to convert."""
    inner, metas = _unwrap(kind)
    origin, members = get_origin(inner), get_args(inner)
    if inner is Any:
        return value
    if origin is Mapping:
        return _mapping(members[1], value, path, mistakes)
    if origin is tuple:
        return _tuple(members[0], value, path, mistakes)
    if origin in {Union, UnionType}:
        return _union(inner, value, path, mistakes)
    if _is_model(inner):
        return _model((inner,), value, path, mistakes)
    return _scalar(inner, metas, value, path, mistakes)


def _union(kind: Any, value: Any, path: _Path, mistakes: list[Mistake]) -> Any:
    members = [member for member in get_args(kind) if member is not NoneType]
    if value is None and len(members) < len(get_args(kind)):
        return None
    if len(members) == 1:
        return _value(members[0], value, path, mistakes)
    if any(value is word for member in members for word in get_args(member)):  # `false`
        return value
    models = tuple(member for member in members if _is_model(member))
    if models:
        return _model(models, value, path, mistakes)
    return _scalar(kind, (), value, path, mistakes)


def _unwrap(kind: Any) -> tuple[Any, tuple[Meta, ...]]:
    return (get_args(kind)[0], get_args(kind)[1:]) if get_origin(kind) is Annotated else (kind, ())


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ConfigModel)


def _mapping(kind: Any, value: Any, path: _Path, mistakes: list[Mistake]) -> Any:
    if not isinstance(value, Mapping):
        mistakes.append(_wrong(path, "a table", value))
        return value
    table: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    checked = {
        name: _value(kind, member, (*path, name), mistakes) for name, member in table.items()
    }
    # the same object if nothing was converted: its field is not set again then
    return table if all(checked[name] is member for name, member in table.items()) else checked


def _tuple(kind: Any, value: Any, path: _Path, mistakes: list[Mistake]) -> Any:
    if not isinstance(value, list | tuple):
        mistakes.append(_wrong(path, "a list", value))
        return value
    items: tuple[Any, ...] = tuple(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    checked = tuple(_value(kind, item, (*path, at), mistakes) for at, item in enumerate(items))
    same = isinstance(value, tuple) and all(a is b for a, b in zip(checked, items, strict=True))
    return value if same else checked  # pyright: ignore[reportUnknownVariableType]


def _model(
    kinds: tuple[type[ConfigModel], ...], value: Any, path: _Path, mistakes: list[Mistake]
) -> Any:
    if isinstance(value, Mapping):
        kind = kinds[0] if len(kinds) == 1 else _chosen(kinds, value)  # pyright: ignore[reportUnknownArgumentType]
        return _from_table(kind, value, path, mistakes)  # pyright: ignore[reportUnknownArgumentType]
    if type(value) in kinds:
        return value
    if isinstance(value, ConfigModel) and issubclass(kinds[0], type(value)):  # a filter as an agent
        return _from_table(kinds[0], structs.asdict(value), path, mistakes)
    mistakes.append(_wrong(path, "a table", value))
    return value


def _chosen(kinds: tuple[type[ConfigModel], ...], table: Mapping[str, Any]) -> type[ConfigModel]:
    """The kind of server that a table describes."""
    for kind in kinds:
        fields = {field.name: field for field in fields_of(kind)}
        if table.get("transport") in get_args(fields["transport"].type):
            return kind
    # otherwise the first one, which then says what it lacks
    return next((kind for kind in kinds if {*_required(kind)} <= table.keys()), kinds[0])


def _required(kind: type[ConfigModel]) -> Iterator[str]:
    return (field.name for field in fields_of(kind) if field.required)


def _from_table(
    kind: type[ConfigModel], table: Mapping[str, Any], path: _Path, mistakes: list[Mistake]
) -> Any:
    before = len(mistakes)
    # the constructor would raise a `TypeError` for these, which names no key of the file
    unknown = table.keys() - {*kind.__struct_fields__}
    for name in sorted(unknown):
        near = did_you_mean(name, kind.__struct_fields__)
        message = "; ".join(filter(None, ("is not a setting here", near)))
        mistakes.append(Mistake((*path, name), message))
    missing = (name for name in _required(kind) if name not in table)
    mistakes += (Mistake((*path, name), "is missing") for name in missing)
    if len(mistakes) > before:
        return None
    try:
        model = kind(**table)
    except InvalidSettings as exc:
        mistakes += (mistake._replace(path=(*path, *mistake.path)) for mistake in exc.mistakes)
        return None
    # a value that equals its default counts as given if the file has it
    model.beside["_given"] = frozenset(table)
    return model


def _scalar(kind: Any, metas: tuple[Meta, ...], value: Any, path: _Path, mistakes: Any) -> Any:
    extra: dict[str, Any] = {}
    for meta in metas:
        extra |= meta.extra or {}
    if isinstance(value, bool):
        # `sandbox = true` is short for one of its levels
        value = extra.get("flags", {}).get(value, value)
    try:
        if extra.get("duration"):
            value = seconds(value, bare="s")
        if get_origin(kind) is Literal:
            return _literal(kind, value, path, mistakes)
        converted = _convert(kind, value)
    # msgspec's `ValidationError` is one; its message speaks of types, not of what to write
    except ValueError:
        nouns = [_NOUNS.get(member, "") for member in get_args(kind) or (kind,)]
        noun = expectation("s") if extra.get("duration") else " or ".join(filter(None, nouns))
        choices = tuple(str(member.value) for member in kind) if _is_enum(kind) else ()
        mistakes.append(
            _choice(path, choices) if choices else _wrong(path, noun or "another value", value)
        )
        return value
    if expected := next(filter(None, (_beyond(meta, converted) for meta in metas)), None):
        mistakes.append(Mistake(path, f"expected {expected}", expected))
    return converted


def _convert(kind: Any, value: Any) -> Any:
    if kind is Path:
        if not isinstance(value, str | Path):
            raise ValueError("not a path")
        return value if isinstance(value, Path) else Path(value)
    converted = msgspec.convert(value, kind)
    # `True == 1`: an equal value of another type is not the same
    return value if type(converted) is type(value) and converted == value else converted


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _literal(kind: Any, value: Any, path: _Path, mistakes: list[Mistake]) -> Any:
    choices = get_args(kind)
    for choice in choices:
        # identity first: `1 == True`; texts by value, which may be members of a `StrEnum`
        if value is choice or (isinstance(value, str) and value == choice):
            return choice
    mistakes.append(_choice(path, choices))
    return value


def _choice(path: _Path, choices: tuple[Any, ...]) -> Mistake:
    *some, last = (repr(choice) for choice in choices)
    expected = f"{', '.join(some)} or {last}" if some else last
    return Mistake(path, f"expected {expected}", expected, tuple(map(str, choices)))


def _beyond(meta: Meta, value: Any) -> str | None:
    """What was expected of a value outside the limits."""
    if meta.gt is not None and not value > meta.gt:
        return f"more than {meta.gt:g}"
    if meta.ge is not None and not value >= meta.ge:
        return f"at least {meta.ge:g}"
    if meta.le is not None and not value <= meta.le:
        return f"at most {meta.le:g}"
    if meta.min_length is not None and len(value) < meta.min_length:
        return "a text that is not empty"
    pattern = (meta.extra or {}).get("pattern")
    if pattern is not None and not pattern.fullmatch(value):
        return "an address that starts with http:// or https://"
    return None


def _wrong(path: _Path, expected: str, value: object) -> Mistake:
    return Mistake(path, f"expected {expected}, got {kind_in_words(value)}", expected)
