"""A tool's definition as its server sent it, and whether it can be used."""

from collections.abc import Mapping
from typing import Any

from multitap.catalog.schemas.json_values import is_object
from multitap.catalog.schemas.plain_schema import is_plain
from multitap.catalog.schemas.schema_version import dialect, objection

MAX_NAME = 1024


def defect(definition: Mapping[str, Any]) -> str | None:
    """Why a tool with this definition cannot be used at all, if so."""
    name = definition.get("name")
    if not isinstance(name, str) or not name:
        return "it has no name"
    if len(name) > MAX_NAME:
        return f"its name is longer than {MAX_NAME:,} characters"
    return _schema_defect(definition.get("inputSchema"))


def needs_task(definition: Mapping[str, Any]) -> bool:
    """Whether a tool can only be run as a task."""
    execution = definition.get("execution")
    return is_object(execution) and execution.get("taskSupport") == "required"


def _schema_defect(schema: Any) -> str | None:
    if schema is None:
        return "it has no inputSchema"
    if not is_object(schema):
        return "its inputSchema is not an object"
    if (kind := schema.get("type", "object")) != "object":
        return f"its inputSchema is of type {kind!r:.100}, not 'object'"
    if not is_plain(schema) and dialect(schema) is None:
        return f"its inputSchema is not a JSON Schema: {objection(schema)}"
    return None
