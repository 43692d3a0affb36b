"""Checks arguments and results against a tool's schema."""

import time
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from multitap.catalog.schemas.bounds import bounds, evaluations
from multitap.catalog.schemas.schema import dialect, is_list, is_object, pointer
from multitap.errors import BadArguments

if TYPE_CHECKING:
    import jsonschema_rs
    from jsonschema_rs import ValidationError, Validator

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


class Unchecked(msgspec.Struct, frozen=True):
    """Accepts all arguments."""

    reason: str

    def check(self, arguments: Mapping[str, Any], *, size: int | None = None) -> None:
        """Do nothing."""


class Checker(msgspec.Struct, frozen=True):
    """A compiled schema."""

    schema: Mapping[str, Any]
    _validator: "Validator"

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
        import jsonschema_rs  # noqa: PLC0415 - megabytes that most gateways do not need

        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as exc:
            return None if _is_given_up(exc) else _describe(exc)
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
    mismatches = [_describe(error) for error in certain[:_REPORTED]]
    if len(certain) > _REPORTED:
        mismatches.append(f"and {len(certain) - _REPORTED} more")
    raise BadArguments("; ".join(mismatches), path=pointer(certain[0].instance_path))


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
    import jsonschema_rs  # noqa: PLC0415 - see above

    try:
        return Checker(
            schema,
            validator(
                {key: value for key, value in schema.items() if key != "$schema"},
                # since 2019-09, a format only describes a value unless one asks for more
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
    import jsonschema_rs  # noqa: PLC0415 - see above

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
    import jsonschema_rs  # noqa: PLC0415 - see above

    kinds = jsonschema_rs.ValidationErrorKind
    return isinstance(error.kind, kinds.BacktrackLimitExceeded | kinds.RegexEngineFailure)


def _describe(error: "ValidationError") -> str:
    """`/limit is not of type "integer"`."""
    import jsonschema_rs  # noqa: PLC0415 - see above

    where = pointer(error.instance_path)
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.AnyOf(
            context
        ) | jsonschema_rs.ValidationErrorKind.OneOfNotValid(context):
            branches = dict.fromkeys(branch[0].message for branch in context if branch)
            reasons = " and ".join(reason.removeprefix(f"{_VALUE} ") for reason in branches)
            sentence = f"{_VALUE} matches none of the alternatives: it {reasons}"
        case _:
            sentence = error.message
    if sentence.startswith(f"{_VALUE} "):
        sentence = (where or "the whole") + sentence.removeprefix(_VALUE)
    elif where:
        sentence = f"{where}: {sentence}"
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}…"


def _first_line(exc: Exception) -> str:
    return str(exc).partition("\n")[0][:_LONGEST]


LARGEST = 1024 * 1024
"""Bytes of structured content up to which it is checked."""
MAX_DEPTH = 32
_MAX_WORK = 5_000_000  # estimated checks
_SLOW = 0.05  # seconds of CPU time; a tool that takes longer is no longer checked
_SMALL = 1024  # bytes up to which reading the clock would cost more than it saves
_TINY = 64  # bytes; shorter content cannot be nested deeply
_SHORT = 4  # bytes; longer content is not `null`


class ResultChecker:
    """Finds mismatches at a bounded cost.

    Schema and result both come from the server, which may want to keep us busy: content that is
    large, deep or slow to check is not checked.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._checker = compile_schema(schema, linear=True)
        self._evaluations: dict[int, int] = {}

    def is_match(self, structured: Raw) -> bool:
        """Whether there is structured content, and it matches."""
        checker, size = self._checker, len(structured)
        if not _SHORT < size <= _TINY or isinstance(checker, Unchecked):
            is_given = size > _SHORT or bytes(structured) not in {b"", b"null"}
            return is_given and self.misfit(structured) is None
        try:
            return checker.misfit(msgspec.json.decode(structured)) is None
        except (msgspec.DecodeError, ValueError, RecursionError):
            return True  # as below

    def misfit(self, structured: Raw) -> str | None:
        """The first mismatch of structured content, in words; None if it matches."""
        checker = self._checker
        if isinstance(checker, Unchecked) or len(structured) > LARGEST:
            return None
        if len(structured) <= _SMALL:
            return self._find_problem(checker, structured)
        # CPU time of this thread: on a busy machine, waiting for a turn is not the schema's fault.
        started = time.thread_time()
        try:
            return self._find_problem(checker, structured)
        finally:
            if time.thread_time() - started > _SLOW:
                self._checker = Unchecked("checking results takes too long")

    def _find_problem(self, checker: Checker, structured: Raw) -> str | None:
        try:
            value = msgspec.json.decode(structured)
            if len(structured) > _TINY and not self._is_modest(value):
                return None
            return checker.misfit(value)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None  # invalid numbers or too deep: reading it reports that

    def _is_modest(self, value: Any) -> bool:
        depth, parts = _result_extent(value)
        if depth > MAX_DEPTH:
            return False
        step = (
            1 << depth.bit_length()
        )  # computing it for each depth would take longer than checking
        if step not in self._evaluations:
            self._evaluations[step] = evaluations(self._schema, step)
        return self._evaluations[step] * (1 + parts) <= _MAX_WORK


def _result_extent(value: Any) -> tuple[int, int]:
    """The depth of a value, and its number of parts."""
    if value.__class__ is dict and _NESTED.isdisjoint(map(type, value.values())):
        return 1, len(value)  # most are flat
    depth = parts = 0
    level: list[Any] = [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        inner: list[Any] = []
        for container in level:
            members: Iterable[Any] = ()
            if is_object(container):
                members = container.values()
            elif is_list(container):
                members = container
            inner += [part for part in members if part.__class__ in _NESTED]
            parts += len(container) if container.__class__ in _NESTED else 0
        level = inner
    return depth, parts


_NESTED = frozenset({dict, list})
