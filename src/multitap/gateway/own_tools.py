"""The gateway's own tools, which clients list beside or instead of those of servers."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog import schemas
from multitap.errors import BadArguments

READ_RESULT = "read_result"
CALL_TOOL = "call_tool"
RUN_CODE = "run_code"
LONGEST_SCRIPT = 64 * 1024
"""Characters of a script."""
_READ_DEFINITION: Mapping[str, Any] = {
    "name": READ_RESULT,
    "description": "Read more of a result that was cut, without calling its tool again.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "result": {"type": "string", "description": "The `result` that the cut one names."},
            "from": {
                "type": "integer",
                "minimum": 0,
                "description": "The first row, or character of a text; `next` of the cut result.",
            },
            "select": {"type": "string", "description": "Which fields you need, as JMESPath."},
        },
        "required": ["result"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
_RUN_DEFINITION: Mapping[str, Any] = {
    "name": RUN_CODE,
    "description": "Run a Python script that calls tools as functions, with keyword arguments "
    'or one dict: `github_list_issues(repo="a/b")`; `await` and `asyncio.gather` work. Find '
    "tools with `search_tools` first. A call returns decoded JSON, else text, and raises if the "
    "tool fails. What the script prints, returns or ends with is the answer: keep it short. There "
    "are no files and no network. If it fails, the error says which calls were made: do not "
    "repeat those.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "code": {"type": "string", "minLength": 1, "maxLength": LONGEST_SCRIPT},
        },
        "required": ["code"],
    },
}
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def search_tools() -> list[Mapping[str, Any]]:
    """The definitions of the three search tools."""
    from multitap.tools.search import finder  # noqa: PLC0415 - a stemmer, in search mode only

    return [
        {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
        for tool in finder.DEFINITIONS.values()
    ]


def code_tools() -> list[Mapping[str, Any]]:
    """The definitions of the three tools of code mode."""
    search, describe, _ = search_tools()
    # models repeat what a description says: this mode has no `call_tool`
    by_code = search["description"].replace(CALL_TOOL, RUN_CODE)
    return [{**search, "description": by_code}, describe, _RUN_DEFINITION]


def running_tool() -> Mapping[str, Any]:
    """The definition of the tool that runs scripts."""
    return _RUN_DEFINITION


def reading_tool() -> Mapping[str, Any]:
    """The definition of the tool that reads on in cut results."""
    return _READ_DEFINITION


def check_arguments(definition: Mapping[str, Any], raw: Raw) -> Mapping[str, Any]:
    """The decoded arguments of one of our own tools.

    Raises:
        BadArguments: They do not match its schema.
    """
    try:
        arguments = _decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise BadArguments(f"the arguments cannot be read: {exc}", path="") from None
    schemas.compile_schema(definition["inputSchema"]).check(arguments)
    return arguments
