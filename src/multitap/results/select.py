"""Chooses parts of a result by a JMESPath expression, within bounds that hold for any expression."""

import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from multitap.errors import BadArguments, counted, quoted, shortened
from multitap.results.result import UNREADABLE, Outline

if TYPE_CHECKING:
    from jmespath.parser import ParsedResult

LONGEST = 2000
"""Characters of an expression."""
LARGEST = 4 * 1024 * 1024
"""Bytes of a result; a larger one would be decoded for too long in one piece."""
_ROOM = 64 * 1024  # what a selection may have besides twice the size of its source
_SECONDS = 2.0  # CPU time of one selection
_CHECKED = 256  # steps between two looks at the clock
_SORTED = 50_000  # entries that are sorted at once: sorting cannot be interrupted
_SHOWN_KEYS = 12
_SHOWN_LEVELS = 2
_SORTING = frozenset({"sort", "sort_by", "min_by", "max_by"})


class SelectFailed(Exception):  # noqa: N818 - not an error of ours: the call was made, and its result is there
    """An expression that does not work on this result; the message says why."""


class Selector:
    """One checked expression.

    Args:
        expression: In JMESPath, such as `items[].{id: id, title: title}`.

    Raises:
        BadArguments: It is none.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._parsed = _parse(expression)

    def __repr__(self) -> str:
        return f"<Selector {self.expression}>"

    def choose(self, value: Any, size: int) -> Any:
        """What the expression chooses from a decoded value that takes `size` bytes as JSON.

        Raises:
            SelectFailed: It does not work on this value, or takes too much time or memory.
        """
        from jmespath.exceptions import JMESPathError, JMESPathTypeError  # noqa: PLC0415 - rare

        try:
            return _interpreter(2 * size + _ROOM).visit(self._parsed.parsed, value)
        except JMESPathTypeError as exc:  # its own message quotes the whole value
            expected = " or ".join(exc.expected_types)
            raise SelectFailed(
                f"`{exc.function_name}` takes {expected}, not {exc.actual_type}"
            ) from None
        except JMESPathError as exc:
            raise SelectFailed(shortened(str(exc), 200)) from None
        except RecursionError:
            raise SelectFailed("it is nested too deeply") from None
        # what Python refuses to compare or to convert, such as a number beyond every float
        except (TypeError, ValueError, ArithmeticError) as exc:
            raise SelectFailed(shortened(str(exc), 200)) from None


def _parse(expression: str) -> "ParsedResult":
    if not 1 <= len(expression) <= LONGEST:
        raise BadArguments(
            f"an expression has 1 to {LONGEST:,} characters, not {len(expression):,}",
            path="/select",
        )
    from jmespath.exceptions import JMESPathError, ParseError  # noqa: PLC0415 - few calls select
    from jmespath.parser import Parser  # noqa: PLC0415

    try:
        return Parser().parse(expression)
    except ParseError as exc:
        where = f" at character {exc.lex_position + 1}" if exc.lex_position is not None else ""
        reason = f"not a JMESPath expression{where}: {quoted(expression)}"
    except (JMESPathError, RecursionError):
        reason = f"not a JMESPath expression: {quoted(expression)}"
    raise BadArguments(
        reason, path="/select", hint="an example: `items[].{id: id, title: title}`"
    ) from None


def _interpreter(room: int) -> Any:
    """An interpreter that stops when a selection takes too much.

    Expressions come from models. A few characters such as `[@, @] | [@, @] | …` double a value
    again and again, so each value is measured when it is made; then whatever is done with it
    (comparing, joining, encoding) takes bounded time too.
    """
    from jmespath.functions import Functions  # noqa: PLC0415 - see above
    from jmespath.visitor import Options, TreeInterpreter  # noqa: PLC0415

    class _Functions(Functions):
        def call_function(self, function_name: str, resolved_args: list[Any]) -> Any:
            if function_name in _SORTING and any(
                isinstance(value, list) and len(value) > _SORTED for value in resolved_args
            ):
                raise SelectFailed(f"`{function_name}` takes at most {_SORTED:,} entries")
            return super().call_function(function_name, resolved_args)

    class _Interpreter(TreeInterpreter):
        def __init__(self) -> None:
            super().__init__(Options(custom_functions=_Functions()))
            self._steps = 0
            self._made = 0
            self._end = time.thread_time() + _SECONDS
            # by identity; the value is kept too, so that no other gets its identity
            self._sizes: dict[int, tuple[Any, int]] = {}

        def visit(self, node: dict[str, Any], *args: Any, **more: Any) -> Any:
            self._steps += 1
            if self._steps % _CHECKED == 0 and time.thread_time() > self._end:
                raise SelectFailed(f"it takes longer than {_SECONDS:g} seconds")
            value = super().visit(node, *args, **more)
            if isinstance(value, (list, dict, str)):
                if self._size(value) > room:
                    raise SelectFailed("it makes more than it was given")
                # what is thrown away again takes time and memory as well
                self._made += len(value)
                if self._made > 64 * room:
                    raise SelectFailed("it takes too many steps")
            return value

        def _size(self, value: Any) -> int:
            """Roughly the characters of a value as JSON, with each use of a shared part."""
            if isinstance(value, str):
                return len(value) + 2
            if not isinstance(value, (list, dict)):
                return 1
            if (measured := self._sizes.get(id(value))) is not None:
                return measured[1]
            size = len(value) + 2
            if isinstance(value, dict):
                size += sum(len(name) + 3 for name in value)
            for member in value.values() if isinstance(value, dict) else value:
                size += self._size(member)
            self._sizes[id(value)] = (value, size)
            return size

    return _Interpreter()


class _Text(msgspec.Struct):
    type: str
    text: str = ""


_parse_members = msgspec.json.Decoder(dict[str, Raw]).decode
_parse_outline = msgspec.json.Decoder(Outline).decode
_parse_blocks = msgspec.json.Decoder(list[Raw]).decode
_parse_text = msgspec.json.Decoder(_Text).decode


def shape_result(raw: Raw | bytes, selector: Selector | None) -> bytes:
    """A result of a tool with only what the selector chooses, and JSON texts without white space.

    Failed results stay as they are. If the selector does not work on this result, its text says
    why and describes the result: the call was made, and must not be repeated to see it. What is
    chosen no longer matches the tool's `outputSchema`, so it is text alone.
    """
    if len(raw) > LARGEST:
        return bytes(raw) if selector is None else _explained(raw, _TOO_LARGE)
    try:
        outline = _parse_outline(raw)
        blocks = _parse_blocks(outline.content) if len(outline.content) else []
    except UNREADABLE:
        return bytes(raw)
    if bytes(outline.is_error) == b"true":
        return bytes(raw)
    if selector is None:
        return _with_content(raw, [_minified(block) for block in blocks], structured=True)
    try:
        value, others = _source(outline.structured, blocks)
        size = len(raw)
        text = msgspec.json.encode(selector.choose(value, size)).decode()
    except SelectFailed as exc:
        return _explained(raw, str(exc))
    except UNREADABLE:
        return _explained(raw, "the result is not JSON")
    if text == "null":
        return _explained(raw, "it matches nothing")
    return _with_content(raw, [_text_block(text), *others], structured=False)


_TOO_LARGE = f"the result has more than {LARGEST // 1024 // 1024} MB"


def _source(structured: Raw, blocks: list[Raw]) -> tuple[Any, list[Raw]]:
    """The value to choose from, and the blocks that are not its text."""
    texts = [_text_of(block) for block in blocks]
    others = [block for block, text in zip(blocks, texts, strict=True) if text is None]
    if len(structured) and bytes(structured) != b"null":
        return msgspec.json.decode(structured), others
    whole = [text for text in texts if text is not None]
    if len(whole) == 1:
        return msgspec.json.decode(whole[0]), others
    # some servers send one block of JSON for each entry
    return [msgspec.json.decode(text) for text in whole], others


def _text_of(block: Raw) -> str | None:
    try:
        text = _parse_text(block)
    except UNREADABLE:
        return None
    return text.text if text.type == "text" else None


def _minified(block: Raw) -> Raw:
    """A text block without the white space of its JSON; any other block as it is."""
    text = _text_of(block)
    if text is None or not text.lstrip().startswith(("{", "[")):
        return block
    try:
        # formatting keeps every digit of a number, which decoding would not
        compact = msgspec.json.format(text.encode(), indent=-1).decode()
    except UNREADABLE:
        return block
    return block if len(compact) >= len(text) else _replace_text(block, compact)


def _replace_text(block: Raw, text: str) -> Raw:
    members = _parse_members(block)
    members["text"] = Raw(msgspec.json.encode(text))
    return Raw(msgspec.json.encode(members))


def _text_block(text: str) -> Raw:
    return Raw(msgspec.json.encode({"type": "text", "text": text}))


def _with_content(raw: Raw | bytes, blocks: list[Raw], *, structured: bool) -> bytes:
    members = _parse_members(raw)
    members["content"] = Raw(msgspec.json.encode(blocks))
    if not structured:
        members.pop("structuredContent", None)
    return msgspec.json.encode(members)


def _explained(raw: Raw | bytes, reason: str) -> bytes:
    """A result that says why nothing was chosen, and what there is."""
    text = f"`select` failed: {reason}. The call was made"
    if len(raw) <= LARGEST:
        try:
            outline = _parse_outline(raw)
            blocks = _parse_blocks(outline.content) if len(outline.content) else []
            text += f"; its result: {describe(_source(outline.structured, blocks)[0])}"
        except UNREADABLE:
            text += "; its result is not JSON"
    return _with_content(raw, [_text_block(text)], structured=False)


def describe(value: Any, levels: int = _SHOWN_LEVELS) -> str:
    """The keys, types and lengths of a value, for somebody who has to choose from it."""
    match value:
        case dict():
            names = [str(name) for name in value]
            if not levels:
                return f"{{{counted(len(names), 'key')}}}"
            shown = [
                f"{shortened(name, 60)}: {describe(value[name], levels - 1)}"
                for name in names[:_SHOWN_KEYS]
            ]
            if len(names) > _SHOWN_KEYS:
                shown.append(f"… {len(names) - _SHOWN_KEYS:,} more")
            return f"{{{', '.join(shown)}}}"
        case list():
            first = f", the first {describe(value[0], levels)}" if value else ""
            return f"list of {len(value):,}{first}"
        case str():
            return "string"
        case bool():
            return "boolean"
        case None:
            return "null"
        case _:
            return "number"
