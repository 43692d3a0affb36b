"""Frozen, validated models: like pydantic's, built on pydantic-core alone.

Importing `pydantic` and building its classes takes longer than a whole command may. The core
validates, converts and reports errors in the same way and with the same messages.
"""

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from pydantic_core import CoreConfig, SchemaSerializer, SchemaValidator

from multitap.records import dataclass

CoreSchema = dict[str, Any]
_REQUIRED: Any = object()

_PLAIN: Mapping[Any, CoreSchema] = {
    Any: {"type": "any"},
    bool: {"type": "bool"},
    float: {"type": "float"},
    int: {"type": "int"},
    str: {"type": "str"},
    Path: {
        "type": "union",
        "choices": [
            {"type": "is-instance", "cls": Path},
            {
                "type": "function-after",
                "function": {"type": "no-info", "function": Path},
                "schema": {"type": "str", "strict": True},
            },
        ],
        "custom_error_type": "path_type",
        "custom_error_message": "Input is not a valid path",
        "serialization": {"type": "to-string", "when_used": "json"},
    },
}


@dataclass(frozen=True, slots=True, eq=False)  # hashed as part of types, with defaults
class Setting:
    """Properties of a field or type besides its type."""

    default: Any = _REQUIRED
    default_factory: Callable[..., Any] | None = None
    limits: Mapping[str, Any] | None = None
    """By the core's names: `ge`, `gt`, `le`, `min_length`, `pattern`."""
    shown: bool = True
    """False if it may be a secret."""
    before: Callable[[Any], Any] | None = None
    after: Callable[[Any], Any] | None = None
    written: Mapping[str, Any] | None = None
    """The JSON Schema of the value in a file, if the type does not determine it."""
    tag: str | None = None
    """The field whose value selects the type of a union."""

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED and self.default_factory is None


def setting(  # noqa: D417 - the others are the core's
    *,
    default: Any = _REQUIRED,
    default_factory: Callable[..., Any] | None = None,
    repr: bool = True,  # noqa: A002 - what `dataclasses` calls it
    before: Callable[[Any], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
    written: Mapping[str, Any] | None = None,
    tag: str | None = None,
    **limits: Any,
) -> Any:
    """The properties of a field, as its default, or of a type in `Annotated`.

    Args:
        default: Its default value.
        default_factory: Makes the default; with a parameter, gets the previous fields.
        repr: Whether it is shown.
        before: Converts the input before validation.
        after: Converts the validated value; a `ValueError` is a validation error.
        written: See `Setting`.
        tag: See `Setting`.
    """
    return Setting(default, default_factory, limits, repr, before, after, written, tag)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
class FrozenModel:
    """A value of several fields, declared like those of a dataclass.

    Raises:
        pydantic_core.ValidationError: The fields are not valid; has all errors.
    """

    __slots__ = (
        "__dict__",
        "__pydantic_extra__",
        "__pydantic_fields_set__",
        "__pydantic_private__",
    )
    __pydantic_fields_set__: set[str]

    model_fields: ClassVar[Mapping[str, Any]] = {}
    """The declared type of each field, with its properties."""
    _settings: ClassVar[Mapping[str, Setting]] = {}
    _core_schema: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        declared: dict[str, Any] = dict(cls.model_fields)
        settings: dict[str, Setting] = dict(cls._settings)
        for name, kind in inspect.get_annotations(cls).items():
            said: Any = cls.__dict__.get(name, _REQUIRED)
            if name in cls.__dict__:
                # otherwise reading a missing field would find the declaration instead of failing
                delattr(cls, name)  # a field belongs to an instance
            if not isinstance(said, Setting):
                said = Setting(said)
            declared[name] = Annotated[kind, said]
            settings[name] = said
        cls.model_fields, cls._settings = declared, settings
        cls._core_schema = _core_schema(cls)

    def __init__(self, **given: Any) -> None:
        self._validator().validate_python(given, self_instance=self)

    @classmethod
    def model_validate(cls, given: Any) -> Self:
        """Make one from a table of its fields."""
        made: Self = cls._validator().validate_python(given)
        return made

    @property
    def model_fields_set(self) -> AbstractSet[str]:
        """The fields that were set explicitly."""
        return self.__pydantic_fields_set__

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """A copy with other values, which are not validated."""
        given = update or {}
        fields_set = self.__pydantic_fields_set__ | given.keys()
        copy: Self = _make(type(self), {**self.__dict__, **given}, fields_set)
        return copy

    def model_dump(
        self,
        *,
        mode: Literal["python", "json"] = "python",
        include: AbstractSet[str] | None = None,
        exclude: AbstractSet[str] | None = None,
        exclude_unset: bool = False,
        exclude_none: bool = False,
        exclude_defaults: bool = False,
    ) -> dict[str, Any]:
        """Its fields as a table, nested models included."""
        table: dict[str, Any] = SchemaSerializer(self._core_schema).to_python(
            self,
            mode=mode,
            include=None if include is None else {*include},
            exclude=None if exclude is None else {*exclude},
            exclude_unset=exclude_unset,
            exclude_none=exclude_none,
            exclude_defaults=exclude_defaults,
        )
        return table

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> CoreSchema:
        """Lets a pydantic model have it as a field."""
        schema: CoreSchema = cls._core_schema
        return schema

    def check_whole(self) -> Self:
        """Validate all fields together; a `ValueError` is a validation error of the whole."""
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrozenModel) or type(self) is not type(other):
            return NotImplemented
        # by value: an entry that spells out a default is the same server
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), *self._fields().values()))

    def __repr__(self) -> str:
        settings = self._settings.items()
        shown = (f"{name}={self._show(name)!r}" for name, said in settings if said.shown)
        return f"{type(self).__name__}({', '.join(shown)})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: make another with `model_copy`")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: make another with `model_copy`")

    def __reduce__(self) -> tuple[Any, ...]:
        # not through `__init__`: valid values are not validated again in another process
        return _make, (type(self), self._fields(), self.__pydantic_fields_set__)

    @classmethod
    @cache
    def _validator(cls) -> SchemaValidator:
        """Built on first use: most models are only used as parts of others."""
        return SchemaValidator(cls._core_schema, _config(cls))

    def _fields(self) -> dict[str, Any]:
        """The values of its fields, without cached properties."""
        return {name: self.__dict__[name] for name in self.model_fields}

    def _show(self, name: str) -> object:
        """The value of a field, as `repr` shows it."""
        return getattr(self, name)


def _make(kind: Any, fields: Mapping[str, Any], given: AbstractSet[str]) -> Any:
    made = object.__new__(kind)
    # past our own `__setattr__`, which refuses everything; pydantic-core needs all four
    object.__setattr__(made, "__dict__", dict(fields))
    object.__setattr__(made, "__pydantic_fields_set__", set(given))
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made


def _core_schema(model: type[FrozenModel]) -> CoreSchema:
    """The core's schema of a model."""
    name = model.__name__
    fields = {
        key: {"type": "model-field", "schema": _field(kind)}
        for key, kind in model.model_fields.items()
    }
    schema: CoreSchema = {
        "type": "model",
        "cls": model,
        "schema": {"type": "model-fields", "fields": fields, "model_name": name},
        "config": _config(model),
    }
    return (
        schema
        if model.check_whole is FrozenModel.check_whole
        else _wrap_calls(schema, after=model.check_whole)
    )


def _config(model: type[FrozenModel]) -> CoreConfig:
    return {
        "extra_fields_behavior": "forbid",
        "hide_input_in_errors": True,  # it may be a secret
        "title": model.__name__,
    }


def _field(declared: Any) -> CoreSchema:
    said: Setting = get_args(declared)[-1]
    schema = _schema(declared)
    if said.is_required:
        return schema
    if said.default_factory is None:
        return {"type": "default", "schema": schema, "default": said.default}
    return {
        "type": "default",
        "schema": schema,
        "default_factory": said.default_factory,
        "default_factory_takes_data": said.default_factory.__code__.co_argcount > 0,
    }


def _schema(  # noqa: PLR0911 - one line per kind of type
    kind: Any, tag: str | None = None
) -> CoreSchema:
    if (plain := _PLAIN.get(kind)) is not None:
        return plain
    if isinstance(kind, type) and issubclass(kind, FrozenModel):
        return kind.__get_pydantic_core_schema__()
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "enum", "cls": kind, "members": [*kind], "sub_type": "str"}
    origin, members = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotate(*members)
    if origin is Literal:
        return {"type": "literal", "expected": [*members]}
    if origin is Mapping:
        keys, values = map(_schema, members)
        return {"type": "dict", "keys_schema": keys, "values_schema": values, "strict": False}
    if origin is tuple:
        return {"type": "tuple", "items_schema": [_schema(members[0])], "variadic_item_index": 0}
    if origin in {Union, UnionType}:
        return _union(members, tag)
    raise TypeError(f"a field cannot be {kind!r}")


def _annotate(kind: Any, *said: Setting) -> CoreSchema:
    schema = _schema(kind, next((one.tag for one in said if one.tag), None))
    for one in said:
        schema = _restrict(schema, one)
    return schema


def _restrict(schema: CoreSchema, said: Setting) -> CoreSchema:
    # a limit applies to the value: None has no length
    if schema["type"] == "nullable":
        return {**schema, "schema": _restrict(schema["schema"], said)}
    return _wrap_calls({**schema, **(said.limits or {})}, before=said.before, after=said.after)


def _wrap_calls(
    schema: CoreSchema,
    *,
    before: Callable[[Any], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
) -> CoreSchema:
    for when, function in (("before", before), ("after", after)):
        if function is not None:
            called = {"type": "no-info", "function": function}
            schema = {"type": f"function-{when}", "function": called, "schema": schema}
    return schema


def _union(members: tuple[Any, ...], tag: str | None) -> CoreSchema:
    kinds = [kind for kind in members if kind is not NoneType]
    schema: CoreSchema
    if tag is not None:
        choices = {word: _schema(kind) for kind in kinds for word in _words(kind, tag)}
        schema = {"type": "tagged-union", "discriminator": tag, "choices": choices}
        schema |= {"from_attributes": True, "strict": False}
    elif len(kinds) == 1:
        schema = _schema(kinds[0])
    else:
        schema = {"type": "union", "choices": [_schema(kind) for kind in kinds]}
    return {"type": "nullable", "schema": schema} if NoneType in members else schema


def _words(model: type[FrozenModel], tag: str) -> tuple[Any, ...]:
    """The values of the field that selects a model of a union."""
    return get_args(get_args(model.model_fields[tag])[0])
