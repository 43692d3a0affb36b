"""Data classes that are cheap to define: their methods are generated on first use.

The standard library compiles six functions for a frozen class at once, which takes longer than the
rest of its module, and a gateway has a hundred such classes: with the standard ones, to import it
takes 23 % more CPU (673 ms against 548, least of ten on a busy machine).
"""

from __future__ import annotations

import dataclasses
import reprlib
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - ours is the same to users
else:

    def dataclass(**options: bool) -> Callable[[type], type]:
        """Like `dataclasses.dataclass`, with the options that we use."""
        return lambda cls: _define(cls, **options)


def _define(
    cls: type[Any],
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    kw_only: bool = False,
) -> type[Any]:
    if any(hasattr(base, "__dataclass_fields__") for base in cls.__bases__):
        return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, kw_only=kw_only)(cls)
    own = {name for name, value in vars(cls).items() if (name, value) != ("__hash__", None)}
    cls.__doc__ = cls.__doc__ or cls.__name__  # otherwise the signature is computed for it
    bare: Callable[[type[Any]], Any] = dataclasses.dataclass(
        init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
    )
    made = bare(cls)
    made.__dataclass_params__.frozen = frozen  # for subclasses
    methods: dict[str, Any] = {"__init__": _first_init(made, frozen=frozen), "__repr__": _repr}
    if eq:
        methods |= _comparing(made, frozen=frozen)
    if frozen:
        methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    defined: type[Any] = made
    return defined


def _first_init(cls: Any, *, frozen: bool) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **given: Any) -> None:  # noqa: N807 - of the class
        cls.__init__ = _init(cls, frozen=frozen)
        cls.__init__(self, *args, **given)

    return __init__


def _init(cls: Any, *, frozen: bool) -> Callable[..., None]:
    """The same methods that the standard library generates."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    takes: dict[bool, list[str]] = {False: [], True: []}
    does: list[str] = []
    for one in fields(cls):
        name, value = one.name, one.name
        default = f"_{name}_default"
        if one.default_factory is not MISSING:
            names[default] = one.default_factory
            value = f"{default}() if {name} is _missing else {name}" if one.init else f"{default}()"
        elif not one.init:
            if one.default is MISSING:
                continue
            value = default
        if one.default is not MISSING:
            names[default] = one.default
        if one.init:
            takes[bool(one.kw_only)].append(name + _default_of(one, default))
        does.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        does.append("self.__post_init__()")
    given = ["self", *takes[False], *(["*", *takes[True]] if takes[True] else [])]
    source = f"def __init__({', '.join(given)}):\n " + "\n ".join(does or ["pass"])
    found: dict[str, Any] = {}
    exec(source, names, found)  # noqa: S102 - made of the names of fields
    init: Callable[..., None] = found["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _default_of(one: Field[Any], default: str) -> str:
    if one.default_factory is not MISSING:
        return "=_missing"
    return "" if one.default is MISSING else f"={default}"


def _comparing(cls: Any, *, frozen: bool) -> dict[str, Any]:
    compared = [one.name for one in fields(cls) if one.compare]
    values: Callable[[Any], Any] = attrgetter(*compared) if compared else lambda _: ()

    def __eq__(self: Any, other: Any) -> bool:  # noqa: N807 - of the class
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(values(self) == values(other))

    def __hash__(self: Any) -> int:  # noqa: N807 - of the class
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(_self: Any, name: str, *_: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
