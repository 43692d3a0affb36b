"""Which version of JSON Schema a schema is written in."""

from collections.abc import Mapping
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationError, Validator

from multitap.schemas.values import pointer

DIALECTS: Mapping[str, type[Validator]] = {
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
}
_NEWEST = next(iter(DIALECTS))
_OFFLINE = jsonschema_rs.Registry([])  # without it an unknown `$schema` would be fetched


def dialect(schema: Mapping[str, Any]) -> type[Validator] | None:
    """What understands the schema: the declared or newest version, else any that accepts it."""
    declared = schema.get("$schema")
    uri = declared.rstrip("#") if isinstance(declared, str) else _NEWEST
    first = uri if uri in DIALECTS else _NEWEST
    accepted = (one for one in (first, *DIALECTS) if _accepts(one, schema))
    return next((DIALECTS[one] for one in accepted), None)


def objection(schema: Mapping[str, Any]) -> str:
    """What is wrong with a schema that no version accepts."""
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": _NEWEST}, registry=_OFFLINE)
    except ValidationError as exc:
        return f"{exc.message:.300} at {pointer(exc.instance_path)}"
    return "it is not valid"


def _accepts(uri: str, schema: Mapping[str, Any]) -> bool:
    try:
        return jsonschema_rs.meta.is_valid({**schema, "$schema": uri}, registry=_OFFLINE)
    except ValueError:
        return True  # nested too deep to tell; the bounds say so when it is to be compiled
