"""What a tool answered, checked before anybody gets it."""

from anyio import to_thread
from msgspec import Raw

from multitap.catalog import Tool
from multitap.content import ToolResult
from multitap.errors import BadAnswer

LARGE = 256 * 1024
"""Bytes from which on a result is looked at in a thread, so that it does not hold up the loop."""
_LARGE_DATA = 64 * 1024  # the same where structured content has to be decoded to check it


def is_large(tool: Tool, raw: Raw) -> bool:
    """Whether a result has to be vetted in a thread."""
    size = len(raw)
    return size > _LARGE_DATA and (size > LARGE or tool.result_checker is not None)


def vet(tool: Tool, raw: Raw) -> ToolResult:
    """The result without malformed blocks, and with warnings of what is wrong with it."""
    result = _vetted(tool, raw)
    return _noted(tool, result) if result.warnings else result


async def vet_large(tool: Tool, raw: Raw) -> ToolResult:
    """The same in a thread."""
    return _noted(tool, await to_thread.run_sync(_vetted, tool, raw, abandon_on_cancel=True))


def _vetted(tool: Tool, raw: Raw) -> ToolResult:
    result = ToolResult(raw, server=tool.server, tool=tool.raw_name)
    try:
        if tool.link.config.check_results == "off":
            _ = result.is_error  # from here on it is known without another look
        else:
            _check(tool, result)
    except BadAnswer:
        return result  # whoever looks inside is told
    return result


def _check(tool: Tool, result: ToolResult) -> None:
    result.sift()
    checker = tool.result_checker
    if checker is None or result.is_error or not result.is_complete:
        return
    words = checker.misfit(result.raw_structured) if result.has_structured else "there is none"
    if words is not None:
        result.warnings += (f"structured content does not fit the output schema: {words}",)


def _noted(tool: Tool, result: ToolResult) -> ToolResult:
    for warning in result.warnings:
        tool.link.note_result(tool.raw_name, warning)
    return result
