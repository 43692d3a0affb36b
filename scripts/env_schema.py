"""The JSON Schema of the Env protocol, for other languages."""

import json
import sys

from multitap.env.protocol import ENV_TOOLS, PREFIXES, Schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> Schema:
    """Every tool's input and output, generated from the models."""
    definitions: Schema = {}
    tools: Schema = {}
    for tool in ENV_TOOLS.values():
        tools[tool.listed] = {
            "description": tool.description,
            "aliases": [prefix + tool.name for prefix in PREFIXES[1:]],
            "optIn": tool.powerful,
            "input": _share(tool.input_schema, tool.question.__name__, definitions),
            "output": _share(tool.output_schema, tool.answer.__name__, definitions),
        }
    return {
        "$schema": DIALECT,
        "title": "Env protocol",
        "description": "MCP tools through which environments describe and use each other.",
        "tools": tools,
        "$defs": dict(sorted(definitions.items())),
    }


def json_schema_text() -> str:
    """The file that is kept in `schema/`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _share(schema: Schema, name: str, definitions: Schema) -> Schema:
    """A reference to a schema, which is added to the definitions with its dependencies."""
    inner: Schema = schema.get("$defs", {})
    definitions |= inner
    definitions[name] = {key: value for key, value in schema.items() if key != "$defs"}
    return {"$ref": f"#/$defs/{name}"}


if __name__ == "__main__":
    sys.stdout.write(json_schema_text())
