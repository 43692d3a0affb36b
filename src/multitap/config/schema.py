"""The JSON Schema of `multitap.toml`, for editors."""

import ast
import inspect
import json
from collections import ChainMap
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo

from multitap.config import access, models, policy_rules
from multitap.config.checks import ConfigModel, fields_of, plain
from multitap.config.models import Settings
from multitap.names import Naming

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "multitap.toml"
KINDS = ("StdioServer", "HttpServer")

Schema = dict[str, Any]


def json_schema() -> Schema:
    """The schema of our file, generated from the models."""
    definitions: Schema = {}
    whole = _model(Settings, definitions)
    # only Python can describe one: it holds an object
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


def _model(model: type[ConfigModel], definitions: Schema) -> Schema:
    fields = fields_of(model)
    required = [field.name for field in fields if field.required]
    return {
        "additionalProperties": False,
        "description": inspect.getdoc(model),
        "properties": {field.name: _property(field, definitions) for field in fields},
        **({"required": required} if required else {}),
        "type": "object",
    }


def _property(field: FieldInfo, definitions: Schema) -> Schema:
    """The schema of a field; a null default is left out, because TOML has no null."""
    schema = _schema_of(field.type, definitions)
    # a default that depends on the machine, as that of `start_concurrency`, is left out
    default: Any = {} if field.default_factory is dict else field.default
    if default is not None and default is not NODEFAULT:
        schema["default"] = plain(default)
    return dict(sorted(schema.items()))


def _schema_of(  # noqa: PLR0911 - one line per kind of type
    kind: Any, definitions: Schema
) -> Schema:
    """The schema of a value of this type in a file."""
    origin, members = get_origin(kind), get_args(kind)
    if origin is Mapping:
        return {"additionalProperties": _schema_of(members[1], definitions), "type": "object"}
    if origin is tuple:
        return {"items": _schema_of(members[0], definitions), "type": "array"}
    if origin in {Union, UnionType}:
        choices = [_schema_of(member, definitions) for member in members if member is not NoneType]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    if origin is Annotated and get_origin(members[0]) is Literal:
        return _schema_of(members[0], definitions)
    if origin is Literal:  # msgspec would sort them: we list the usual one first
        constraint = {"const": members[0]} if len(members) == 1 else {"enum": [*members]}
        return {**constraint, "type": "string" if isinstance(members[0], str) else "boolean"}
    if isinstance(kind, type) and issubclass(kind, ConfigModel | Enum):
        return {"$ref": f"#/$defs/{_define(kind, definitions)}"}
    schema = msgspec.json.schema(kind, schema_hook=lambda _: _PATH)
    return {"anyOf": schema["anyOf"]} if "anyOf" in schema else schema


_PATH: Schema = {"format": "path", "type": "string"}


def _define(kind: Any, definitions: Schema) -> str:
    name: str = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # it may be recursive
        if issubclass(kind, ConfigModel):
            definitions[name] = _model(kind, definitions)
        else:
            values = [member.value for member in kind]
            about = inspect.getdoc(kind)
            definitions[name] = {"description": about, "enum": values, "type": "string"}
    return name


def _docstrings() -> dict[str, dict[str, str]]:
    """The text below each field, by class; a subclass has those of its parents too."""
    docstrings: dict[str, dict[str, str]] = {}
    sources = map(inspect.getsource, (policy_rules, access, models))
    for node in (node for source in sources for node in ast.parse(source).body):
        if isinstance(node, ast.ClassDef):
            parents = [base.id for base in node.bases if isinstance(base, ast.Name)]
            inherited = [docstrings.get(parent, {}) for parent in parents]
            docstrings[node.name] = dict(ChainMap(dict(_below_fields(node)), *inherited))
    return docstrings


def _below_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, text
            case _:
                continue


def _describe(definition: Schema, texts: dict[str, str]) -> None:
    for name, member in definition.get("properties", {}).items():
        if text := texts.get(name):
            member["description"] = text


def _accept_list(program: Schema) -> None:
    """Allows a command with its arguments in one list."""
    list_schema = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    program["properties"]["command"] = {"anyOf": [program["properties"]["command"], list_schema]}


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
