"""A tool's schema as its server sent it: its version, and whether it can be used."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

if TYPE_CHECKING:
    import jsonschema_rs


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list | tuple)


def pointer(path: Iterable[str | int]) -> str:
    """The JSON pointer (RFC 6901) of a path; empty for the whole."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


_NEWEST = "https://json-schema.org/draft/2020-12/schema"


@cache
def _dialects() -> "Mapping[str, type[jsonschema_rs.Validator]]":
    import jsonschema_rs  # noqa: PLC0415 - megabytes that most gateways do not need

    return {
        _NEWEST: jsonschema_rs.Draft202012Validator,
        "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
        "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
        "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
        "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    }


@cache
def _offline() -> "jsonschema_rs.Registry":
    """Refuses to fetch an unknown `$schema`."""
    import jsonschema_rs  # noqa: PLC0415 - see above

    return jsonschema_rs.Registry([])


def dialect(schema: Mapping[str, Any]) -> "type[jsonschema_rs.Validator] | None":
    """The validator class: of the declared or newest version, otherwise of any that accepts it."""
    declared = schema.get("$schema")
    uri = declared.rstrip("#") if isinstance(declared, str) else _NEWEST
    dialects = _dialects()
    first = uri if uri in dialects else _NEWEST
    accepted = (version for version in (first, *dialects) if _accepts(version, schema))
    return next((dialects[version] for version in accepted), None)


def objection(schema: Mapping[str, Any]) -> str:
    """What is wrong with a schema that no version accepts."""
    import jsonschema_rs  # noqa: PLC0415 - see above

    try:
        jsonschema_rs.meta.validate({**schema, "$schema": _NEWEST}, registry=_offline())
    except jsonschema_rs.ValidationError as exc:
        return f"{exc.message:.300} at {pointer(exc.instance_path)}"
    return "it is not valid"


def _accepts(uri: str, schema: Mapping[str, Any]) -> bool:
    import jsonschema_rs  # noqa: PLC0415 - see above

    try:
        return jsonschema_rs.meta.is_valid({**schema, "$schema": uri}, registry=_offline())
    except ValueError:
        return True  # nested too deeply to tell; the bounds report it before it is compiled


# Deeper ones go to the library, which has bounds of its own; this recurses.
_DEEPEST = 16
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_VERSIONS = frozenset(
    {
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
    }
)
_REFERENCES = ("#/$defs/", "#/definitions/")


def is_plain(schema: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether a schema is certainly valid; most tools' schemas are.

    Others need a library that most gateways do not load before their first call.
    """
    return depth < _DEEPEST and all(
        _holds(keyword, value, depth + 1) for keyword, value in schema.items()
    )


def _holds(keyword: str, value: Any, depth: int) -> bool:
    if (check := _CHECKS.get(keyword)) is not None:
        return check(value)
    if keyword in {"items", "additionalProperties", "not"}:
        return _is_schema(value, depth)
    if keyword in {"properties", "$defs", "definitions"}:
        return is_object(value) and all(_is_schema(schema, depth) for schema in value.values())
    if keyword in {"anyOf", "allOf", "oneOf"}:
        return is_list(value) and bool(value) and all(_is_schema(schema, depth) for schema in value)
    # keywords of vendors, which no version forbids
    return keyword.startswith("x-")


def _is_schema(value: Any, depth: int) -> bool:
    return isinstance(value, bool) or (is_object(value) and is_plain(value, depth))


def _is_any(_: Any) -> bool:
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_type(value: Any) -> bool:
    if is_list(value):
        return bool(value) and _are_different_texts(value) and _TYPES.issuperset(value)
    return isinstance(value, str) and value in _TYPES


def _are_different_texts(value: Any) -> bool:
    return (
        is_list(value)
        and all(isinstance(item, str) for item in value)
        and len(set(value)) == len(value)
    )


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and value.rstrip("#") in _VERSIONS


def _is_reference(value: Any) -> bool:
    if not isinstance(value, str) or not value.startswith(_REFERENCES):
        return False
    # any other name may be encoded, and has to be decoded first
    return value.rpartition("/")[2].replace("_", "").isalnum() and value.isascii()


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "$ref": _is_reference,
    "$schema": _is_version,
    "const": _is_any,
    "default": _is_any,
    "description": _is_text,
    "enum": is_list,
    "examples": is_list,
    "exclusiveMaximum": _is_number,
    "exclusiveMinimum": _is_number,
    "format": _is_text,
    "maxItems": _is_count,
    "maxLength": _is_count,
    "maxProperties": _is_count,
    "maximum": _is_number,
    "minItems": _is_count,
    "minLength": _is_count,
    "minProperties": _is_count,
    "minimum": _is_number,
    "readOnly": _is_truth,
    "required": _are_different_texts,
    "title": _is_text,
    "type": _is_type,
    "uniqueItems": _is_truth,
}


MAX_NAME = 1024
TaskSupport = Literal["required", "optional", "forbidden"]


def defect(definition: Mapping[str, Any]) -> str | None:
    """Why a tool with this definition cannot be used at all, if so."""
    name = definition.get("name")
    if not isinstance(name, str) or not name:
        return "it has no name"
    if len(name) > MAX_NAME:
        return f"its name is longer than {MAX_NAME:,} characters"
    return _schema_defect(definition.get("inputSchema"))


def task_support(definition: Mapping[str, Any]) -> TaskSupport:
    """Whether a tool can, or must, be run as a task; only servers of the handshake era say so."""
    execution = definition.get("execution")
    support = execution.get("taskSupport") if is_object(execution) else None
    return support if support in {"required", "optional"} else "forbidden"


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
