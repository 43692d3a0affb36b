"""Finds out which version of JSON Schema a schema is written in."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from multitap.catalog.schemas.json_values import pointer
from multitap.later import Later

if TYPE_CHECKING:
    import jsonschema_rs
else:
    jsonschema_rs = Later("jsonschema_rs")

_NEWEST = "https://json-schema.org/draft/2020-12/schema"


@cache
def _dialects() -> "Mapping[str, type[jsonschema_rs.Validator]]":
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
    return jsonschema_rs.Registry([])


def dialect(schema: Mapping[str, Any]) -> "type[jsonschema_rs.Validator] | None":
    """The validator class: of the declared or newest version, otherwise of any that accepts it."""
    declared = schema.get("$schema")
    uri = declared.rstrip("#") if isinstance(declared, str) else _NEWEST
    dialects = _dialects()
    first = uri if uri in dialects else _NEWEST
    accepted = (one for one in (first, *dialects) if _accepts(one, schema))
    return next((dialects[one] for one in accepted), None)


def objection(schema: Mapping[str, Any]) -> str:
    """What is wrong with a schema that no version accepts."""
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": _NEWEST}, registry=_offline())
    except jsonschema_rs.ValidationError as exc:
        return f"{exc.message:.300} at {pointer(exc.instance_path)}"
    return "it is not valid"


def _accepts(uri: str, schema: Mapping[str, Any]) -> bool:
    try:
        return jsonschema_rs.meta.is_valid({**schema, "$schema": uri}, registry=_offline())
    except ValueError:
        return True  # nested too deeply to tell; the bounds report it before it is compiled
