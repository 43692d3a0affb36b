"""Checks arguments against a tool's schema before the call is sent."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any

from multitap.catalog.schemas.bounds import bounds, evaluations
from multitap.catalog.schemas.json_values import is_list, is_object, pointer
from multitap.catalog.schemas.schema_version import dialect
from multitap.errors import BadArguments
from multitap.later import Later
from multitap.records import dataclass

if TYPE_CHECKING:
    import jsonschema_rs
    from jsonschema_rs import ValidationError, Validator
else:
    jsonschema_rs = Later("jsonschema_rs")

MAX_ARGUMENT_DEPTH = 128
"""Levels; the validator recurses, and the stack of a thread may be small."""
_EXPLAINED = 10_000  # each message costs fifteen microseconds
# A model fixes a few mistakes at a time; more would only cost tokens.
_REPORTED = 3
_LONGEST = 300
# The pattern is the server's, the text the caller's: without a limit, `(a+)+$` holds up the loop
# for as long as the server likes. A pattern that exceeds it refuses nothing.
_BACKTRACKS = 100_000
_PATTERN_SIZE = 1_000_000
_VALUE = "it"  # replaces the value in the validator's messages: it may be long, or secret


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Accepts all arguments."""

    reason: str

    def check(self, arguments: Mapping[str, Any], *, size: int | None = None) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Checker:
    """A compiled schema."""

    schema: Mapping[str, Any] = field(repr=False)
    _validator: "Validator" = field(repr=False)

    def check(self, arguments: Mapping[str, Any], *, size: int | None = None) -> None:
        """Check that arguments match the schema.

        Args:
            arguments: The caller's arguments.
            size: Their bytes as JSON, if known: short ones cannot be nested deeply.

        Raises:
            BadArguments: They do not match; `path` says where.
        """
        if size is not None and size <= MAX_ARGUMENT_DEPTH and self._validator.is_valid(arguments):
            return
        depth, items, plain = 1, 0, arguments
        # most are flat, which a quick test shows
        if arguments.__class__ is not dict or not _FLAT.issuperset(map(type, arguments.values())):
            depth, items = _extent(arguments)
            if depth > MAX_ARGUMENT_DEPTH:
                raise BadArguments(f"nested more than {MAX_ARGUMENT_DEPTH} levels deep", path="")
            plain = dict(arguments)
        try:
            if self._validator.is_valid(plain):
                return
            # whether `null` means "not given" is for the server to decide
            plain = _without_nulls(plain, self.schema)
            if self._validator.is_valid(plain):
                return
            work = evaluations(self.schema, depth) * (1 + items)
            errors = list(self._validator.iter_errors(plain)) if work <= _EXPLAINED else None
        except ValueError as exc:
            raise BadArguments(f"not JSON: {_first_line(exc)}", path="") from None
        _refuse_for(errors)

    def misfit(self, value: Any) -> str | None:
        """The first mismatch of a value, in words; None if it matches."""
        if self._validator.is_valid(value):
            return None
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as exc:
            return None if _is_given_up(exc) else _words(exc)
        return None


def _refuse_for(errors: "list[ValidationError] | None") -> None:
    if errors is None:
        raise BadArguments(
            "the arguments do not match the tool's schema: too many mismatches to list",
            path="",
        )
    certain = [error for error in errors if not _is_given_up(error)]
    if not certain:
        return  # only patterns that took too long
    words = [_words(error) for error in certain[:_REPORTED]]
    if len(certain) > _REPORTED:
        words.append(f"and {len(certain) - _REPORTED} more")
    raise BadArguments("; ".join(words), path=pointer(certain[0].instance_path))


def compile_schema(schema: Mapping[str, Any], *, linear: bool = False) -> Checker | Unchecked:
    """A checker for `schema`, or `Unchecked` if checking could cost too much.

    Args:
        schema: The schema from the server.
        linear: Whether to skip patterns that may take long, because the values come from the
            server, too.
    """
    if (reason := bounds(schema)) is not None:
        return Unchecked(reason)
    validator = dialect(schema)
    if validator is None:
        return Unchecked("no version of JSON Schema accepts it")
    try:
        return Checker(
            schema,
            validator(
                {key: value for key, value in schema.items() if key != "$schema"},
                validate_formats=False,
                retriever=_never_fetch,
                mask=_VALUE,
                pattern_options=_patterns(linear=linear),
            ),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        return Unchecked(_first_line(exc))


@cache
def _patterns(*, linear: bool) -> "jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions":
    if linear:
        return jsonschema_rs.RegexOptions(size_limit=_PATTERN_SIZE // 10)
    return jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=_PATTERN_SIZE)


# A server must not make us request an address: it could be one of the local network.
def _never_fetch(uri: str) -> Any:
    raise ValueError(f"{uri} is not part of the schema")


def _without_nulls(value: Any, schema: Any) -> Any:
    """A value without the optional members that are null."""
    if not is_object(value) or not is_object(schema):
        return value
    required, properties = schema.get("required"), schema.get("properties")
    needed = required if is_list(required) else ()
    schemas = properties if is_object(properties) else {}
    return {
        name: _without_nulls(member, schemas.get(name))
        for name, member in value.items()
        if member is not None or name in needed
    }


_FLAT = frozenset({str, int, float, bool, type(None)})
"""Types of values without nested values."""


def _extent(arguments: Mapping[str, Any]) -> tuple[int, int]:
    """The depth of the arguments, and the number of items in all their lists."""
    depth = items = 0
    level: list[Iterable[Any]] = [arguments.values()]
    while level and depth <= MAX_ARGUMENT_DEPTH:
        depth += 1
        inner: list[Iterable[Any]] = []
        for parts in level:
            for part in parts:
                if type(part) in _FLAT:
                    continue
                if is_object(part):
                    inner.append(part.values())
                elif is_list(part):
                    inner.append(part)
                    items += len(part)
        level = inner
    return depth, items


def _is_given_up(error: "ValidationError") -> bool:
    kinds = jsonschema_rs.ValidationErrorKind
    return isinstance(error.kind, kinds.BacktrackLimitExceeded | kinds.RegexEngineFailure)


def _words(error: "ValidationError") -> str:
    """`/limit is not of type "integer"`."""
    where = pointer(error.instance_path)
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.AnyOf(
            context
        ) | jsonschema_rs.ValidationErrorKind.OneOfNotValid(context):
            branches = dict.fromkeys(branch[0].message for branch in context if branch)
            reasons = " and ".join(reason.removeprefix(f"{_VALUE} ") for reason in branches)
            words = f"{_VALUE} matches none of the alternatives: it {reasons}"
        case _:
            words = error.message
    if words.startswith(f"{_VALUE} "):
        words = (where or "the whole") + words.removeprefix(_VALUE)
    elif where:
        words = f"{where}: {words}"
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…"


def _first_line(exc: Exception) -> str:
    return str(exc).partition("\n")[0][:_LONGEST]
