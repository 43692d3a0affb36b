"""What a tool answered, checked before anybody gets it."""

from anyio import to_thread
from msgspec import Raw

from multitap.catalog import Tool
from multitap.content import ToolResult
from multitap.content.sifting import UNREADABLE, parse_sound
from multitap.router import Route

LARGE = 256 * 1024
"""Bytes from which on a result is looked at in a thread, so that it does not hold up the loop."""
SMALL = 64 * 1024
"""The same where structured content has to be decoded to check it."""


def is_large(tool: Tool, raw: Raw) -> bool:
    """Whether a result has to be vetted in a thread."""
    size = len(raw)
    return size > SMALL and (size > LARGE or tool.result_checker is not None)


def vet(route: Route, raw: Raw) -> ToolResult:
    """The result without malformed blocks, and with warnings of what is wrong with it.

    Raises:
        BadAnswer: It can not be read.
    """
    tool = route.tool
    if tool.result_checker is None:
        try:
            sound = parse_sound(raw)
        except UNREADABLE:
            pass
        else:
            result = ToolResult(raw, server=tool.server, tool=tool.raw_name)
            result.is_error_known = sound.is_error
            return result
    result = _vetted(route, raw)
    return _noted(route, result) if result.warnings else result


async def vet_large(route: Route, raw: Raw) -> ToolResult:
    """The same in a thread."""
    return _noted(route, await to_thread.run_sync(_vetted, route, raw, abandon_on_cancel=True))


def _vetted(route: Route, raw: Raw) -> ToolResult:
    tool = route.tool
    result = ToolResult(raw, server=tool.server, tool=tool.raw_name)
    if route.link.config.check_results != "off":
        _check(tool, result)
    result.is_error_known = result.is_error  # from here on, without another look
    return result


def _check(tool: Tool, result: ToolResult) -> None:
    result.sift()
    checker = tool.result_checker
    if checker is None or result.is_error or not result.is_complete:
        return
    words = checker.misfit(result.raw_structured) if result.has_structured else "there is none"
    if words is not None:
        result.warnings += (f"structured content does not fit the output schema: {words}",)


def _noted(route: Route, result: ToolResult) -> ToolResult:
    for warning in result.warnings:
        route.link.note_result(route.tool.raw_name, warning)
    return result
