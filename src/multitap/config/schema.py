"""The JSON Schema of `multitap.toml`, for editors."""

import ast
import inspect
import json
from collections import ChainMap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic_core import to_jsonable_python

from multitap.config import models, policy_rules
from multitap.config.frozen_model import FrozenModel, Setting
from multitap.config.models import Settings
from multitap.names import Naming

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "multitap.toml"
KINDS = ("StdioServer", "HttpServer")

Schema = dict[str, Any]

_PLAIN: Mapping[Any, Schema] = {
    Any: {},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer"},
    str: {"type": "string"},
    Path: {"format": "path", "type": "string"},
}
_LIMITS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "min_length": "minLength",
    "pattern": "pattern",
}


def json_schema() -> Schema:
    """The schema of our file, generated from the models."""
    definitions: Schema = {}
    whole = _model(Settings, definitions)
    del definitions["LocalServer"]
    texts = _docstrings()
    _describe(whole, texts["Settings"])
    definitions = dict(sorted(definitions.items()))
    for name, definition in definitions.items():
        _describe(definition, texts.get(name, {}))
    _accept_list(definitions["StdioServer"])
    definitions["Naming"]["enum"] += [naming.name.lower() for naming in Naming]
    definitions["Amendment"] = _amendment(definitions)
    whole["properties"]["$schema"] = {"type": "string"}
    whole["properties"]["servers"]["additionalProperties"] = {
        "anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in (*KINDS, "Amendment")]
    }
    return {"$schema": DIALECT, **whole, "title": TITLE, "$defs": definitions}


def json_schema_text() -> str:
    """The text of the file in `schema/`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _model(model: type[FrozenModel], definitions: Schema) -> Schema:
    fields = model.model_fields.items()
    required = [name for name, declared in fields if get_args(declared)[-1].is_required]
    properties = {name: _property(declared, definitions) for name, declared in fields}
    return {
        "additionalProperties": False,
        "description": inspect.getdoc(model),
        "properties": properties,
        **({"required": required} if required else {}),
        "type": "object",
    }


def _property(declared: Any, definitions: Schema) -> Schema:
    """The schema of a field; a null default is left out, because TOML has no null."""
    said: Setting = get_args(declared)[-1]
    schema = _schema_of(declared, definitions)
    if not said.is_required and said.default_factory is None and said.default is not None:
        schema["default"] = to_jsonable_python(_plain(said.default))
    return dict(sorted(schema.items()))


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, FrozenModel) else value


def _schema_of(  # noqa: PLR0911 - one line per kind of type
    kind: Any, definitions: Schema
) -> Schema:
    """The schema of a value of this type in a file."""
    origin, members = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _limit(_schema_of(members[0], definitions), members[1:])
    if origin is Literal:
        words = {"const": members[0]} if len(members) == 1 else {"enum": [*members]}
        return {**words, "type": "string" if isinstance(members[0], str) else "boolean"}
    if origin is Mapping:
        return {"additionalProperties": _schema_of(members[1], definitions), "type": "object"}
    if origin is tuple:
        return {"items": _schema_of(members[0], definitions), "type": "array"}
    if origin in {Union, UnionType}:
        choices = [_schema_of(one, definitions) for one in members if one is not NoneType]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    if kind not in _PLAIN:
        return {"$ref": f"#/$defs/{_define(kind, definitions)}"}
    return dict(_PLAIN[kind])


def _limit(schema: Schema, said: tuple[Setting, ...]) -> Schema:
    for one in said:
        if one.written is not None:
            schema = dict(one.written)
            continue
        limits = one.limits or {}
        schema |= {_LIMITS[name]: limit for name, limit in limits.items() if name in _LIMITS}
    return schema


def _define(kind: Any, definitions: Schema) -> str:
    name: str = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # it may be recursive
        if issubclass(kind, FrozenModel):
            definitions[name] = _model(kind, definitions)
        else:
            words = [one.value for one in kind]
            about = inspect.getdoc(kind)
            definitions[name] = {"description": about, "enum": words, "type": "string"}
    return name


def _docstrings() -> dict[str, dict[str, str]]:
    """The text below each field, by class; a subclass has those of its parents too."""
    found: dict[str, dict[str, str]] = {}
    sources = map(inspect.getsource, (policy_rules, models))
    for node in (node for source in sources for node in ast.parse(source).body):
        if isinstance(node, ast.ClassDef):
            parents = [base.id for base in node.bases if isinstance(base, ast.Name)]
            inherited = [found.get(parent, {}) for parent in parents]
            found[node.name] = dict(ChainMap(dict(_below_fields(node)), *inherited))
    return found


def _below_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(node.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                yield name, words
            case _:
                continue


def _describe(definition: Schema, texts: dict[str, str]) -> None:
    for name, member in definition.get("properties", {}).items():
        if text := texts.get(name):
            member["description"] = text


def _accept_list(program: Schema) -> None:
    """Allows a command with its arguments in one list."""
    words = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    program["properties"]["command"] = {"anyOf": [program["properties"]["command"], words]}


def _amendment(definitions: Schema) -> Schema:
    """An entry that changes some values of a server that another file describes."""
    properties = {
        name: definition
        for kind in KINDS
        for name, definition in definitions[kind]["properties"].items()
        if name not in ("command", "url", "transport")
    }
    return {
        "type": "object",
        "description": "Changes a server that another file describes.",
        "properties": properties,
        "additionalProperties": False,
    }
