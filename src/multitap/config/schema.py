"""The JSON Schema of `multitap.toml`, for editors that complete and check it."""

import ast
import json
from collections import ChainMap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from multitap.config import models
from multitap.config.documents import is_list, is_table
from multitap.config.models import Settings
from multitap.names import Naming

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "multitap.toml"
KINDS = ("StdioServer", "HttpServer")

Schema = dict[str, Any]


def json_schema() -> Schema:
    """What our file may hold, generated from the models."""
    whole = _cleaned(Settings.model_json_schema())
    definitions: Schema = whole.pop("$defs")
    del definitions["LocalServer"]
    texts = _docstrings()
    _describe(whole, texts["Settings"])
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
    """The file that is kept in `schema/`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _cleaned(node: Any) -> Any:
    """Without titles that repeat the name, and without null, which TOML has not."""
    if is_list(node):
        return [_cleaned(element) for element in node]
    if not is_table(node):
        return node
    members = {
        key: _cleaned(member)
        for key, member in node.items()
        if key != "title" or not isinstance(member, str)
    }
    if members.get("default", ...) is None:
        del members["default"]
    alternatives: list[Schema] = members.get("anyOf", [])
    kept = [choice for choice in alternatives if choice.get("type") != "null"]
    if len(kept) == 1 < len(alternatives):
        return {**kept[0], **{key: member for key, member in members.items() if key != "anyOf"}}
    return {**members, "anyOf": kept} if alternatives else members


def _docstrings() -> dict[str, dict[str, str]]:
    """The text below each field, by class; a subclass has those of its parents too."""
    found: dict[str, dict[str, str]] = {}
    tree = ast.parse(Path(models.__file__).read_text(encoding="utf-8"))
    for node in tree.body:
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
    """A command may be written with its arguments in one list."""
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
