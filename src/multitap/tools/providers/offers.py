"""Tools in one provider's format, and the way back from a model's calls."""

import binascii
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2s
from typing import Any, Protocol

import msgspec

from multitap.catalog.schemas.schema import is_list, is_object, pointer
from multitap.names import MAX_LENGTH, slug
from multitap.results import ImageBlock, ToolResult
from multitap.telemetry.metrics import BYTES_PER_TOKEN
from multitap.tools.providers.dialects import SAME, Restoration, restore_value
from multitap.tools.providers.schemas import (
    COMBINATORS,
    STEPS,
    OnChange,
    Path,
    Schema,
    ShorteningStep,
    comma_list,
    cut,
    flatten,
    inline_references,
    say_less,
)
from multitap.tools.providers.strict import NotStrict, strict
from multitap.tools.tool import NOBODY, Arguments, ToolContext, ToolInfo, text_result


def estimate_tokens(value: Any) -> int:
    """The approximate number of tokens of a JSON value.

    No more than an estimate: tokenizers differ from model to model, and providers rewrite
    definitions before a model reads them.

    Raises:
        TypeError, ValueError, RecursionError: The value is not JSON.
    """
    return round(len(msgspec.json.encode(value)) / BYTES_PER_TOKEN)


Dialect = Callable[[Schema, OnChange], tuple[Schema | None, Restoration]]
"""Makes a schema of arguments, without references and top-level combinators, acceptable."""


class Converted(msgspec.Struct, frozen=True, kw_only=True):
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
    """A tool's definition in the provider's dialect; shortened until it has `budget` tokens.

    Raises:
        CannotOffer: Its arguments are not an object, or it cannot be made short enough.
    """
    kinds = schema.get("type", "object")
    if kinds != "object" and not (is_list(kinds) and "object" in kinds):
        raise CannotOffer(f"its arguments are of type {kinds!r:.100}, not an object")
    notes = _ChangeNotes()
    flat, rules = flatten(inline_references(schema, notes))
    if combined := [keyword for keyword in COMBINATORS if keyword in schema]:
        notes((), f"{comma_list(combined)} made one object", "the top of a schema has to be one")
    about = " ".join(filter(None, (description.strip(), rules)))
    converted = _convert(about, flat, dialect, notes, wants_strict=wants_strict)
    # Each step starts from the full schema, not from the last attempt: a cut of a cut would
    # read badly.
    for step in STEPS:
        if converted.tokens <= budget:
            return converted
        converted = _shorter(about, flat, dialect, notes, step, wants_strict=wants_strict)
    if converted.tokens > budget:
        raise CannotOffer(
            f"its definition has {converted.tokens:,} tokens even when cut, over {budget:,}"
        )
    return converted


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
    tokens = estimate_tokens({"description": about, "parameters": schema})
    return Converted(
        description=about,
        schema=schema,
        strict=is_strict,
        back=back,
        notes=tuple(notes.all),
        tokens=tokens,
    )


def member(value: Any, *names: str) -> Any:
    """The value of the first field that exists."""
    for name in names:
        # client libraries return objects, plain HTTP returns dictionaries
        content: Any = value.get(name) if is_object(value) else getattr(value, name, None)
        if content is not None:
            return content
    return None


def members_of(value: Any, within: str | None = None) -> list[Any]:
    """The members of a list, or of the one in a field."""
    members = member(value, within) if within is not None and not is_list(value) else value
    return list(members) if is_list(members) else []


class UnreadableArguments(Exception):
    """Arguments that are not a JSON object; the message is for the model."""


def parse_arguments(raw: Any) -> dict[str, Any]:
    """The arguments of a call.

    Raises:
        UnreadableArguments: They are not an object.
    """
    value = _decode(raw) if isinstance(raw, str | bytes | bytearray) else raw
    if isinstance(value, str):
        value = _decode(value)  # some models write JSON into a JSON string
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise UnreadableArguments("the arguments are not a JSON object; send them again as one")


def _decode(raw: str | bytes | bytearray) -> Any:
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    # models send an empty string for a tool without arguments
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    try:
        return json.loads(
            text, strict=False, parse_constant=_refuse
        )  # allows line breaks within strings
    except (ValueError, RecursionError) as exc:
        raise UnreadableArguments(
            f"the arguments are not valid JSON: {exc}; send them again as one JSON object"
        ) from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


NOTHING = "(no output)"
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)


class ResultImage(msgspec.Struct, frozen=True):
    mime_type: str
    """The media type found in the bytes: providers refuse a wrong one."""
    data: str
    """The bytes in base64."""

    @property
    def url(self) -> str:
        return f"data:{self.mime_type};base64,{self.data}"


class ImageLimits(msgspec.Struct, frozen=True):
    """The images that a provider accepts; others are described in text."""

    types: frozenset[str]
    largest: int
    """Characters in base64."""
    longest_side: int | None = None
    """Pixels."""

    def pictures(self, result: ToolResult) -> Iterator[ResultImage]:
        for block in result.images:
            if self._fits(block):
                yield ResultImage(
                    _type(block), binascii.b2a_base64(block.data, newline=False).decode()
                )

    def _fits(self, image: ImageBlock) -> bool:
        side = max(image.width or 0, image.height or 0)
        return (
            # computed, not encoded: base64 of a picture that is too large would be thrown away
            (image.size + 2) // 3 * 4 <= self.largest
            and (self.longest_side is None or side <= self.longest_side)
            and _type(image) in self.types
        )


def text_of(result: ToolResult) -> str:
    """The text of a result for the model, with a line for everything that is not text."""
    text = result.error if result.is_error else result.text
    return text if text and text.strip() else NOTHING


def _type(image: ImageBlock) -> str:
    head = image.data[:16]
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return next((name for magic, name in _MAGIC if head.startswith(magic)), image.mime_type)


class Change(msgspec.Struct, frozen=True):
    """One difference between an offer and the tool's own definition."""

    tool: str
    """The tool's name in the registry."""
    path: str
    """Where in its schema, as a JSON pointer; empty for the whole."""
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.tool}{self.path}: {self.what}, because {self.why}"


class Skipped(msgspec.Struct, frozen=True):
    """A tool that is not offered, and why."""

    tool: str
    why: str

    def __str__(self) -> str:
        return f"{self.tool}: {self.why}"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of a model."""

    id: str
    """The provider's id, which the result must name."""
    name: str
    """The tool's name in the registry."""
    arguments: Arguments
    """The arguments, as the tool expects them."""
    sent: str
    """The tool's name as the model wrote it."""
    problem: ToolResult | None = None
    """Set if the arguments cannot be read: the text for the model, instead of a result."""


Answered = tuple[ToolCall, ToolResult]
RawCall = tuple[str, str, Any]
"""Id, name and arguments as received."""
Execute = Callable[[str, Arguments, ToolContext], Awaitable[ToolResult]]


class Shape(Protocol):
    """The formats of tools, calls and results in one API of a provider."""

    def declare(self, name: str, tool: Converted) -> dict[str, Any]: ...
    def wrap(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]: ...
    def calls(self, answer: Any) -> Iterable[RawCall]: ...
    def messages(self, answers: Iterable[Answered]) -> list[dict[str, Any]]: ...


class Offer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Tools in the format of one provider, at the time it was made."""

    tools: list[Any]
    """Ready for the `tools` parameter of the provider's API; objects, typed so that every client
    takes them."""
    changes: tuple[Change, ...]
    skipped: tuple[Skipped, ...]
    tokens: int
    """Estimated tokens of `tools` in every request."""
    names: Mapping[str, str]
    """Registry names, by the names that the provider sees."""
    searching: bool
    """Whether the three search tools are offered instead of all tools."""
    _backs: Mapping[str, Restoration]
    _shape: Shape
    _execute: Execute

    def calls(self, answer: Any) -> tuple[ToolCall, ...]:
        """The calls in a model's answer: an object of the provider's client, or plain data."""
        return tuple(self.call(*parts) for parts in self._shape.calls(answer))

    def call(self, call_id: str, name: str, raw: Any) -> ToolCall:
        """One call from its parts, as a stream delivers them.

        Args:
            call_id: The provider's id.
            name: As the model wrote it.
            raw: The arguments: a string of JSON, even if malformed, or an object.
        """
        tool = self.names.get(name, name)
        arguments: Arguments = {}
        problem: ToolResult | None = None
        try:
            arguments = restore_value(parse_arguments(raw), self._backs.get(name, SAME))
        except UnreadableArguments as exc:
            problem = text_result(str(exc), is_error=True, tool=tool)
        return ToolCall(id=call_id, name=tool, arguments=arguments, sent=name, problem=problem)

    async def execute(self, call: ToolCall, context: ToolContext = NOBODY) -> ToolResult:
        """Run a call; a failure becomes a result."""
        return call.problem or await self._execute(call.name, call.arguments, context)

    def messages(self, answers: Iterable[Answered]) -> list[Any]:
        """The messages to append after the model's message, for all its calls."""
        return self._shape.messages(answers)


_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{MAX_LENGTH - 1}}}")  # accepted by all providers
_MOST_CACHED = 4096  # more than any set of tools; without a bound, reloads would add up


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and formats of one provider."""

    name: str
    dialect: Dialect
    shape: Shape
    most_tools: int | None = None
    strict: bool = False

    def holds(self, count: int) -> bool:
        return self.most_tools is None or count <= self.most_tools


class Conversions:
    """A cache, so that each definition is converted once."""

    def __init__(self) -> None:
        self._converted: dict[tuple[Any, ...], tuple[Any, Converted | CannotOffer]] = {}
        self._costs: dict[tuple[int, str, str], tuple[Any, int]] = {}

    def of(self, tool: ToolInfo, provider: Provider, budget: int) -> Converted:
        """The tool in the provider's format.

        Raises:
            CannotOffer: It cannot be offered.
        """
        schema = tool.parameters
        # by identity: hashing a large schema costs as much as converting a small one
        key = (id(schema), tool.description, provider.dialect, provider.strict, budget)
        cached = self._converted.get(key)
        if cached is None or cached[0] is not schema:
            # All at once: this happens rarely, and keeping track of which is oldest would cost each
            # lookup.
            if len(self._converted) >= _MOST_CACHED:
                self._converted.clear()
            cached = self._converted[key] = (schema, _convert_or_refuse(tool, provider, budget))
        if isinstance(cached[1], CannotOffer):
            raise CannotOffer(str(cached[1]))
        return cached[1]

    def cost(self, tool: ToolInfo) -> int:
        """Tokens of the tool's unconverted definition."""
        schema = tool.parameters
        key = (id(schema), tool.name, tool.description)
        cached = self._costs.get(key)
        if cached is None or cached[0] is not schema:
            if len(self._costs) >= _MOST_CACHED:
                self._costs.clear()
            cached = self._costs[key] = (schema, _cost(tool))
        return cached[1]


def make_offer(
    tools: Sequence[ToolInfo],
    provider: Provider,
    *,
    tool_budget: int,
    conversions: Conversions,
    execute: Execute,
    searching: bool = False,
) -> Offer:
    """All tools that the provider accepts, with a reason for each that it does not."""
    skipped: list[Skipped] = []
    offered: dict[str, tuple[ToolInfo, Converted]] = {}
    changes: list[Change] = []
    for tool in tools:
        sent = provider_name(tool.name)
        if reason := _no_room(sent, offered, provider):
            skipped.append(Skipped(tool.name, reason))
            continue
        try:
            converted = conversions.of(tool, provider, tool_budget)
        except CannotOffer as exc:
            skipped.append(Skipped(tool.name, str(exc)))
            continue
        offered[sent] = tool, converted
        if sent != tool.name:
            changes.append(Change(tool.name, "", f"it is called {sent!r}", _why_named(provider)))
        changes += [Change(tool.name, *note) for note in converted.notes]
    declared = [provider.shape.declare(sent, converted) for sent, (_, converted) in offered.items()]
    encoded = msgspec.json.encode(provider.shape.wrap(declared))
    return Offer(
        tools=msgspec.json.decode(encoded),  # a copy: conversions are reused
        changes=tuple(changes),
        skipped=tuple(skipped),
        tokens=sum(map(estimate_tokens, declared)),
        names={sent: tool.name for sent, (tool, _) in offered.items()},
        searching=searching,
        _backs={sent: converted.back for sent, (_, converted) in offered.items() if converted.back},
        _shape=provider.shape,
        _execute=execute,
    )


def provider_name(name: str) -> str:
    """The tool's name if all providers accept it, otherwise a similar one for all of them."""
    if _NAME.fullmatch(name):
        return name
    plain = slug(name)
    plain = plain if plain[:1].isalpha() or plain[:1] == "_" else f"_{plain}"
    # a digest of the whole name keeps names apart that differ only in replaced characters
    digest = blake2s(name.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{plain[: MAX_LENGTH - 9]}_{digest}"


def _no_room(sent: str, names: Collection[str], provider: Provider) -> str | None:
    if sent in names:
        return f"another tool is called {sent!r} already"
    if not provider.holds(len(names) + 1):
        return f"{provider.name} takes {provider.most_tools} tools; a `budget` offers a search"
    return None


def _convert_or_refuse(tool: ToolInfo, provider: Provider, budget: int) -> Converted | CannotOffer:
    try:
        estimate_tokens((tool.description, tool.parameters))
    except (TypeError, ValueError, RecursionError) as exc:
        return CannotOffer(f"its definition cannot be written as JSON: {exc}")
    try:
        return convert_tool(
            tool.description,
            tool.parameters,
            provider.dialect,
            wants_strict=provider.strict,
            budget=budget,
        )
    except CannotOffer as exc:
        return exc


def _cost(tool: ToolInfo) -> int:
    definition = (tool.name, tool.description, tool.parameters)
    try:
        return estimate_tokens(definition)
    except (TypeError, ValueError, RecursionError):
        return 0  # such a tool cannot be offered


def _why_named(provider: Provider) -> str:
    return f"{provider.name} takes names of at most {MAX_LENGTH} letters, digits, _ and -"
