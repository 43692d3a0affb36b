"""Results with only what a caller chooses of them."""

from typing import Any

import msgspec
from anyio import to_thread
from msgspec import Raw

from multitap.results.result import UNREADABLE, Outline
from multitap.selectors import SelectFailed, Selector, describe

LARGEST = 4 * 1024 * 1024
"""Bytes of a result; a larger one would be decoded for too long in one piece."""
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
    # a failure has a reason to show, and a question has no content yet
    if bytes(outline.is_error) == b"true" or bytes(outline.kind) not in _DONE:
        return bytes(raw)
    if selector is None:
        return _with_content(raw, [_minified(block) for block in blocks], structured=True)
    try:
        chosen = choose(raw, selector)
    except SelectFailed as exc:
        return _explained(raw, str(exc))
    text = msgspec.json.encode(chosen).decode()
    others = [block for block in blocks if _text_of(block) is None]
    return _with_content(raw, [_text_block(text), *others], structured=False)


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


def _explained(raw: Raw | bytes, reason: str) -> bytes:
    """A result that says why nothing was chosen, and what there is."""
    text = f"`select` failed: {reason}. The call was made"
    if len(raw) <= LARGEST:
        try:
            text += f"; its result: {describe(_value(raw))}"
        except UNREADABLE:
            text += "; its result is not JSON"
    return _with_content(raw, [_text_block(text)], structured=False)
