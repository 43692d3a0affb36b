"""What the providers publish about the tools they take, written down a second time.

Nothing here is shared with the code under test: a mistake has to be made twice to go unseen.
"""

import re

from jsonschema_rs import Draft202012Validator, ValidationError, meta

NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
GEMINI_NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_.-]{0,63}$")
ANTHROPIC_PROPERTY = re.compile(r"^[a-zA-Z0-9_.-]{1,64}$")
GEMINI_PROPERTY = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$")
ROOT_REFUSED = {"anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else", "$ref"}

STRICT_WORDS = {
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum"),
    *("description", "pattern", "format", "multipleOf", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"),
}
STRICT_FORMATS = {
    *("date-time", "time", "date", "duration", "email"),
    *("hostname", "ipv4", "ipv6", "uuid"),
}
GEMINI_TYPES = {"STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT"}
GEMINI_WORDS = {
    *("type", "format", "description", "nullable", "enum", "items", "minItems", "maxItems"),
    *("properties", "required", "anyOf", "minimum", "maximum", "minLength", "maxLength"),
    *("pattern", "minProperties", "maxProperties"),
}
GEMINI_FORMATS = {
    "STRING": {"enum", "date-time"},
    "NUMBER": {"float", "double"},
    "INTEGER": {"int32", "int64"},
}


def openai_chat(tools):
    """Why Chat Completions would refuse the tools."""
    yield from _many(tools, 128)
    for tool in tools:
        if set(tool) != {"type", "function"} or tool["type"] != "function":
            yield f"not a function: {tool}"
        yield from openai_function(tool["function"])


def openai_responses(tools):
    yield from _many(tools, 128)
    for tool in tools:
        if tool["type"] != "function" or not isinstance(tool["strict"], bool):
            yield f"not a function: {tool}"
        yield from openai_function({word: tool[word] for word in tool if word != "type"})


def openai_function(function):
    if unknown := set(function) - {"name", "description", "parameters", "strict"}:
        yield f"unknown: {unknown}"
    yield from _name(function, NAME)
    schema = function["parameters"]
    yield from _json_schema(schema)
    for path, node in nodes(schema):
        if node.get("type") == "array" and not isinstance(node.get("items"), dict):
            yield f"{path}: array schema missing items"
        if node.get("type") == "object" and "properties" not in node:
            yield f"{path}: object schema missing properties"
    if function.get("strict"):
        yield from _strict(schema)


def anthropic(tools):
    """Why the Messages interface would refuse the tools."""
    yield from _many(tools, None)
    for tool in tools:
        if unknown := set(tool) - {"name", "description", "input_schema"}:
            yield f"unknown: {unknown}"
        yield from _name(tool, NAME)
        yield from _json_schema(tool["input_schema"])
        for path, node in nodes(tool["input_schema"]):
            for name in node.get("properties", {}):
                if not ANTHROPIC_PROPERTY.match(name):
                    yield f"{path}: property {name!r}"


def gemini(tools):
    """Why generateContent would refuse the tools."""
    if not tools:
        return
    (only,) = tools
    (declarations,) = only.values()
    yield from _many(declarations, 128)
    for declaration in declarations:
        if unknown := set(declaration) - {"name", "description", "parameters"}:
            yield f"unknown: {unknown}"
        yield from _name(declaration, GEMINI_NAME)
        if not declaration["description"]:
            yield "no description"
        if "parameters" in declaration:
            if declaration["parameters"].get("type") != "OBJECT":
                yield "the parameters are no object"
            yield from _gemini(declaration["parameters"], declaration["name"])


def _many(tools, most):
    names = [tool.get("name") or tool["function"]["name"] for tool in tools]
    if most is not None and len(names) > most:
        yield f"{len(names)} tools"
    if len(set(names)) != len(names):
        yield "tool names must be unique"


def _name(tool, pattern):
    if not pattern.match(tool["name"]):
        yield f"name {tool['name']!r}"
    if not isinstance(tool.get("description", ""), str):
        yield "the description is no text"


def _json_schema(schema):
    """Both want an object of draft 2020-12 at the top, and no references here."""
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        yield "not an object"
    if found := ROOT_REFUSED & set(schema):
        yield f"{found} at the top"
    try:
        meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})
    except ValidationError as exc:
        yield f"no JSON Schema: {exc.message}"
    for path, node in nodes(schema):
        if found := {"$ref", "$defs", "definitions", "$dynamicRef", "$id"} & set(node):
            yield f"{path}: {found}"
        if isinstance(pattern := node.get("pattern"), str):
            try:
                re.compile(pattern)
            except re.error:
                yield f"{path}: {pattern!r} is not a regex"


def _strict(schema):
    properties = values = characters = 0
    for path, node in nodes(schema):
        if unknown := set(node) - STRICT_WORDS:
            yield f"{path}: {unknown} in strict mode"
        if not {"type", "anyOf"} & set(node):
            yield f"{path}: schema must have a type"
        if node.get("type") == "object":
            if node.get("additionalProperties") is not False:
                yield f"{path}: additionalProperties has to be false"
            if sorted(node["required"]) != sorted(node["properties"]):
                yield f"{path}: required has to name every property"
        if node.get("format", "uuid") not in STRICT_FORMATS:
            yield f"{path}: format {node['format']}"
        if "(?=" in node.get("pattern", "") or "(?!" in node.get("pattern", ""):
            yield f"{path}: pattern {node['pattern']}"
        properties += len(node.get("properties", {}))
        values += len(node.get("enum", []))
        characters += sum(map(len, node.get("properties", {})))
        characters += sum(len(value) for value in node.get("enum", []) if isinstance(value, str))
    if properties > 5000 or values > 1000 or characters > 120_000:
        yield "too large for strict mode"
    if _levels(schema) > 10:
        yield "more than 10 levels"


def _gemini(node, path):
    if unknown := set(node) - GEMINI_WORDS:
        yield f"{path}: unknown name {unknown}"
    if "anyOf" in node:
        if set(node) != {"anyOf"}:
            yield f"{path}: any_of must be the only field set"
        for at, branch in enumerate(node["anyOf"]):
            yield from _gemini(branch, f"{path}/anyOf/{at}")
        return
    yield from _gemini_words(node, path)
    for name, part in node.get("properties", {}).items():
        if not GEMINI_PROPERTY.match(name):
            yield f"{path}: property {name!r}"
        yield from _gemini(part, f"{path}/{name}")
    if "items" in node:
        yield from _gemini(node["items"], f"{path}/items")


def _gemini_words(node, path):
    kind = node.get("type")
    if kind not in GEMINI_TYPES:
        yield f"{path}: type {kind!r}"
    if node.get("format") and node["format"] not in GEMINI_FORMATS.get(kind, ()):
        yield f"{path}: format {node['format']!r} for {kind}"
    if "enum" in node and (kind != "STRING" or not all(map(_text, node["enum"]))):
        yield f"{path}: enum: only allowed for STRING type, and none empty"
    if kind == "OBJECT":
        if not node.get("properties"):
            yield f"{path}: properties should be non-empty for OBJECT type"
        if set(node.get("required", ())) - set(node.get("properties", ())):
            yield f"{path}: required: property is not defined"
    elif {"properties", "required"} & set(node):
        yield f"{path}: properties: only allowed for OBJECT type"
    if kind == "ARRAY" and "items" not in node:
        yield f"{path}: items: missing field"
    if kind != "ARRAY" and "items" in node:
        yield f"{path}: items: only allowed for ARRAY type"


def _text(value):
    return isinstance(value, str) and value != ""


def _levels(node):
    inner = [*node.get("properties", {}).values(), *node.get("anyOf", [])]
    inner += [node["items"]] if "items" in node else []
    own = 1 if node.get("type") == "object" else 0
    return own + max((_levels(part) for part in inner), default=0)


def nodes(schema, path=""):
    """Every schema within a schema, with its place."""
    yield path, schema
    for word in ("properties", "patternProperties", "dependentSchemas"):
        for name, part in schema.get(word, {}).items():
            if isinstance(part, dict):
                yield from nodes(part, f"{path}/{word}/{name}")
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for at, part in enumerate(schema.get(word, [])):
            if isinstance(part, dict):
                yield from nodes(part, f"{path}/{word}/{at}")
    for word in ("items", "additionalProperties", "not", "if", "then", "else", "contains"):
        if isinstance(schema.get(word), dict):
            yield from nodes(schema[word], f"{path}/{word}")


def fits(schema, value):
    return Draft202012Validator(schema).is_valid(value)
