"""Converts a tool's definition to a provider's format."""

from collections.abc import Callable, Mapping
from typing import Any

from multitap.catalog.schemas.json_values import is_list, pointer
from multitap.records import dataclass
from multitap.tools.providers.descriptions import comma_list, cut
from multitap.tools.providers.flat import COMBINATORS, flatten
from multitap.tools.providers.inline import inline_references
from multitap.tools.providers.restore import Restoration
from multitap.tools.providers.shrink import STEPS, ShorteningStep, say_less
from multitap.tools.providers.strict import NotStrict, strict
from multitap.tools.providers.token_cost import estimate
from multitap.tools.providers.walk import OnChange, Path, Schema

Dialect = Callable[[Schema, OnChange], tuple[Schema | None, Restoration]]
"""Makes a schema of arguments, without references and top-level combinators, acceptable."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The definition of a tool for a provider, except its name."""

    description: str
    schema: Schema | None
    """None for a tool without arguments, if the provider requires that."""
    strict: bool
    back: Restoration
    notes: tuple[tuple[str, str, str], ...]
    """Place, change and reason of each change."""
    tokens: int


class CannotOffer(Exception):
    """A tool that cannot be offered; the message says why."""


def convert_tool(
    description: str,
    schema: Mapping[str, Any],
    dialect: Dialect,
    *,
    wants_strict: bool = False,
    budget: int,
) -> Converted:
    """A tool's definition in the provider's dialect, of at most `budget` tokens.

    Args:
        description: The tool's own description.
        schema: The schema of its arguments, which is not changed.
        dialect: The provider's dialect.
        wants_strict: Try strict mode first.
        budget: Tokens; a larger definition is shortened step by step.

    Raises:
        CannotOffer: Its arguments are not an object, or it cannot be made short enough.
    """
    kinds = schema.get("type", "object")
    if kinds != "object" and not (is_list(kinds) and "object" in kinds):
        raise CannotOffer(f"its arguments are of type {kinds!r:.100}, not an object")
    notes = _ChangeNotes()
    flat, words = flatten(inline_references(schema, notes))
    if found := [word for word in COMBINATORS if word in schema]:
        notes((), f"{comma_list(found)} made one object", "the top of a schema has to be one")
    about = " ".join(filter(None, (description.strip(), words)))
    made = _convert(about, flat, dialect, notes, wants_strict=wants_strict)
    # Each step starts from the full schema, not from the last attempt: a cut of a cut would
    # read badly.
    for step in STEPS:
        if made.tokens <= budget:
            return made
        made = _shorter(about, flat, dialect, notes, step, wants_strict=wants_strict)
    if made.tokens > budget:
        raise CannotOffer(
            f"its definition has {made.tokens:,} tokens even when cut, over {budget:,}"
        )
    return made


class _ChangeNotes:
    """Every change once, in the order they were made."""

    def __init__(self, before: Mapping[tuple[str, str, str], None] | None = None) -> None:
        self.all = dict(before or {})

    def __call__(self, path: Path, what: str, why: str) -> None:
        self.all[pointer(path), what, why] = None


def _convert(
    about: str, flat: Schema, dialect: Dialect, before: _ChangeNotes, *, wants_strict: bool
) -> Converted:
    notes = _ChangeNotes(before.all)
    if wants_strict:
        try:
            return _whole(about, *strict(flat, notes), notes, is_strict=True)
        except NotStrict as exc:
            # from scratch: the notes of the strict attempt do not apply to this one
            notes = _ChangeNotes(before.all)
            notes((), "it is offered without strict mode", str(exc))
    return _whole(about, *dialect(flat, notes), notes, is_strict=False)


def _shorter(
    about: str,
    flat: Schema,
    dialect: Dialect,
    before: _ChangeNotes,
    step: ShorteningStep,
    *,
    wants_strict: bool,
) -> Converted:
    notes = _ChangeNotes(before.all)
    notes((), str(step), "it is too long")
    short = say_less(flat, step)
    return _convert(cut(about, step.about), short, dialect, notes, wants_strict=wants_strict)


def _whole(
    about: str, schema: Schema | None, back: Restoration, notes: _ChangeNotes, *, is_strict: bool
) -> Converted:
    tokens = estimate({"description": about, "parameters": schema})
    return Converted(about, schema, is_strict, back, tuple(notes.all), tokens)
