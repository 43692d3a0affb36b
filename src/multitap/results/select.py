"""Results with only what a caller chooses of them, or has room for."""

from typing import Any

import msgspec
from anyio import to_thread
from msgspec import Raw

from multitap.results.cutting import NOT_KEPT, Handle, Piece, cut_json, cut_text
from multitap.results.result import UNREADABLE, Outline, ToolResult
from multitap.selectors import SelectFailed, Selector, describe

LARGEST = 4 * 1024 * 1024
"""Bytes of a result; a larger one would take seconds to search."""
_DONE = frozenset({b"", b'"complete"'})


async def shape(raw: Raw | bytes, selector: Selector | None) -> bytes:
    """The same as `shape_result`, in a thread: an expression may take seconds."""
    return await to_thread.run_sync(shape_result, raw, selector)


class _Text(msgspec.Struct):
    type: str
    text: str = ""


_parse_members = msgspec.json.Decoder(dict[str, Raw]).decode
_parse_outline = msgspec.json.Decoder(Outline).decode
_parse_blocks = msgspec.json.Decoder(list[Raw]).decode
_parse_text = msgspec.json.Decoder(_Text).decode


def shape_result(raw: Raw | bytes, selector: Selector | None) -> bytes:
    """A result of a tool with only what the selector chooses, and JSON texts without white space.

    If the selector does not work on this result, its text says why and describes the result: the
    call was made, and must not be repeated to see it.
    """
    try:
        return select_result(raw, selector)
    except SelectFailed as exc:
        return explain(raw, str(exc))


def select_result(raw: Raw | bytes, selector: Selector | None) -> bytes:
    """A result of a tool with only what the selector chooses, and JSON texts without white space.

    Failed results stay as they are. What is chosen no longer matches the tool's `outputSchema`, so
    it is text alone.

    Raises:
        SelectFailed: The selector does not work on this result.
    """
    if len(raw) > LARGEST:
        if selector is not None:
            raise SelectFailed(_TOO_LARGE)
        return bytes(raw)
    try:
        outline = _parse_outline(raw)
        blocks = _parse_blocks(outline.content) if len(outline.content) else []
    except UNREADABLE:
        return bytes(raw)
    # a failure has a reason to show, and a question has no content yet
    if bytes(outline.is_error) == b"true" or bytes(outline.kind) not in _DONE:
        return bytes(raw)
    if selector is None:
        return _with_content(raw, [_minified(block) for block in blocks], structured=True)
    text = msgspec.json.encode(choose(raw, selector)).decode()
    others = [block for block in blocks if _text_of(block) is None]
    return _with_content(raw, [_text_block(text), *others], structured=False)


def cut_result(raw: bytes, room: int, handle: Handle, start: int = 0) -> tuple[bytes, bool]:
    """A result whose text takes about `room` bytes, and whether anything is missing.

    Args:
        raw: The whole result.
        room: Bytes for its texts.
        handle: How the reader gets the rest.
        start: The first row, or character if it is not JSON, to show.
    """
    if len(raw) > LARGEST:
        # its end is not decoded; one byte of JSON is about one character
        beginning = ToolResult(raw).beginning(start + room + 1)
        size = len(raw) if len(beginning) > start + room else len(beginning)
        piece = cut_text(beginning, room, handle, start, size)
        return _with_content(raw, [_text_block(piece.text)], structured=False), piece.is_cut
    try:
        outline = _parse_outline(raw)
        blocks = _parse_blocks(outline.content) if len(outline.content) else []
    except UNREADABLE:
        return raw, False
    if bytes(outline.kind) not in _DONE or (text_size(raw) <= room and not start):
        return raw, False
    piece = _cut(raw, blocks, room, handle, start)
    others = [block for block in blocks if _text_of(block) is None]
    return _with_content(raw, [_text_block(piece.text), *others], structured=False), piece.is_cut


def _cut(raw: bytes, blocks: list[Raw], room: int, handle: Handle, start: int) -> Piece:
    texts = [text for text in map(_text_of, blocks) if text is not None]
    try:
        value = _value(raw)
    except UNREADABLE:
        return cut_text("\n".join(texts), room, handle, start)
    # structured content may be no more than a wrapper of the text, which reads better in pieces
    if len(texts) == 1 and _is_wrapped(value, texts[0]):
        return cut_text(texts[0], room, handle, start)
    return cut_json(value, room, handle, start)


def _is_wrapped(value: Any, text: str) -> bool:
    match value:
        case {"result": str(wrapped)}:
            return wrapped == text
        case _:
            return False


class Shaped(msgspec.Struct, frozen=True):
    """A result for a model."""

    shown: bytes
    whole: bytes | None
    """What is kept, if anything is missing in what is shown."""
    before: int
    """Bytes that a model would have read."""
    after: int


def fit_result(
    raw: bytes, selector: Selector | None, room: int, handle: Handle, start: int = 0
) -> Shaped:
    """A result with what the selector chooses, from `start` on, cut to about `room` bytes."""
    before = text_size(raw)
    try:
        whole = select_result(raw, selector)
    except SelectFailed as exc:
        explanation = explain(raw, str(exc), handle)
        return Shaped(explanation, raw, before, text_size(explanation))
    piece, is_cut = cut_result(whole, room, handle, start)
    return Shaped(piece, whole if is_cut else None, before, text_size(piece))


def text_size(raw: Raw | bytes) -> int:
    """Bytes that a model reads of a result: its texts, else its structured content."""
    try:
        outline = _parse_outline(raw)
        blocks = _parse_blocks(outline.content) if len(outline.content) else []
    except UNREADABLE:
        return len(raw)
    if len(raw) > LARGEST:  # not decoded: an escape more or less does not matter here
        return max((len(block) for block in blocks), default=len(outline.structured))
    texts = [text for text in map(_text_of, blocks) if text is not None]
    return sum(len(text.encode()) for text in texts) if texts else len(outline.structured)


def add_block(raw: bytes, block: dict[str, Any]) -> bytes:
    """A result with one more block."""
    outline = _parse_outline(raw)
    blocks = _parse_blocks(outline.content) if len(outline.content) else []
    return _with_content(raw, [*blocks, Raw(msgspec.json.encode(block))], structured=True)


def choose(raw: Raw | bytes, selector: Selector) -> Any:
    """What a selector chooses of a result: of its structured content, else of its text as JSON.

    Raises:
        SelectFailed: It chooses nothing, or does not work on this result.
    """
    if len(raw) > LARGEST:
        raise SelectFailed(_TOO_LARGE)
    try:
        value = selector.choose(_value(raw), len(raw))
    except UNREADABLE:
        raise SelectFailed("the result is not JSON") from None
    if value is None:
        raise SelectFailed("it matches nothing")
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):  # `&@` is an expression, and no value
        raise SelectFailed("it does not choose a value") from None
    return value


_TOO_LARGE = f"the result has more than {LARGEST // 1024 // 1024} MB"


def _value(raw: Raw | bytes) -> Any:
    """The value to choose from."""
    outline = _parse_outline(raw)
    if len(outline.structured) and bytes(outline.structured) != b"null":
        return msgspec.json.decode(outline.structured)
    blocks = _parse_blocks(outline.content) if len(outline.content) else []
    texts = [text for text in map(_text_of, blocks) if text is not None]
    # some servers send one block of JSON for each entry
    values = [msgspec.json.decode(text) for text in texts]
    return values[0] if len(values) == 1 else values


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


def explain(raw: Raw | bytes, reason: str, handle: Handle = NOT_KEPT) -> bytes:
    """A result that says why nothing was chosen, and what there is."""
    text = f"`select` failed: {reason}. The call was made"
    if len(raw) <= LARGEST:
        try:
            text += f"; its result: {describe(_value(raw))}"
        except UNREADABLE:
            text += "; its result is not JSON"
    if handle.id:
        text += f'. `{handle.by}` with result "{handle.id}" reads it, or selects again'
    return _with_content(raw, [_text_block(text)], structured=False)
