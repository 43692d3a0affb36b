"""Tools, calls and results as Google's generateContent writes them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from multitap.results import ToolResult
from multitap.tools.providers.dialects import (
    SAME,
    Restoration,
    either,
    plain,
    portable,
    rename_properties,
)
from multitap.tools.providers.offers import (
    Answered,
    Converted,
    ImageLimits,
    RawCall,
    ToolCall,
    member,
    members_of,
    text_of,
)
from multitap.tools.providers.schemas import (
    OnChange,
    Path,
    Schema,
    comma_list,
    describe,
    properties_of,
    required_of,
    with_description,
)

PROPERTY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
FORMATS: Mapping[str, frozenset[str]] = {
    "string": frozenset({"date-time"}),
    "number": frozenset({"float", "double"}),
    "integer": frozenset({"int32", "int64"}),
}
_KEPT = frozenset(
    {
        *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
        *("minProperties", "maxProperties"),
    }
)
# It has no null type; a nullable string comes closest.
_NULL: Schema = {"type": "STRING", "nullable": True}
_WHY = "Gemini does not take it"


def narrow(schema: Mapping[str, Any], note: OnChange) -> tuple[Schema | None, Restoration]:
    """The schema of a tool's arguments for Gemini; None for a tool without arguments."""
    root = plain(schema, note)
    # Gemini refuses an object without properties, even as a tool's arguments
    if not properties_of(root):
        return None, SAME
    return _node(root, note, ())


def _node(node: Schema, note: OnChange, path: Path) -> tuple[Schema, Restoration]:
    if "anyOf" in node:
        return _choice(node, note, path)
    match node.get("type"):
        case None:
            return _text(node, "any value, as JSON", note, path), Restoration(text=True)
        case "object" if not properties_of(node):
            return _text(node, "an object, as JSON", note, path), Restoration(text=True, word=True)
        case "object":
            return _object(node, note, path)
        case "array":
            items, back = _node(node["items"], note, (*path, "items"))
            return {**_keep_known(node, note, path), "items": items}, Restoration(
                items=back or None
            )
        case _:
            return _keep_known(node, note, path), SAME


def _choice(node: Schema, note: OnChange, path: Path) -> tuple[Schema, Restoration]:
    """No keyword may accompany `anyOf`, so the description goes to the first alternative."""
    every = node["anyOf"]
    branches = [branch for branch in every if branch.get("type") != "null"] or every[:1]
    nullable = {"nullable": True} if len(branches) < len(every) else {}
    pairs = [_node(branch, note, (*path, "anyOf", at)) for at, branch in enumerate(branches)]
    # `anyOf` within `anyOf` is refused
    alternatives = _spread_lists([branch for branch, _ in pairs])
    description = " ".join(
        filter(None, (describe(*_about(node)), alternatives[0].get("description", "")))
    )
    alternatives[0] = with_description(alternatives[0], description)
    back = either(back for _, back in pairs)
    if len(alternatives) == 1:
        return {**alternatives[0], **nullable}, back
    return {"anyOf": [{**branch, **nullable} for branch in alternatives]}, back


def _spread_lists(schemas: list[Schema]) -> list[Schema]:
    return [inner for schema in schemas for inner in schema.get("anyOf", [schema])]


def _object(node: Schema, note: OnChange, path: Path) -> tuple[Schema, Restoration]:
    names = rename_properties(node["properties"], PROPERTY)
    if names:
        note(path, f"{comma_list(names)} renamed", "Gemini does not accept such property names")
    properties: Schema = {}
    backs: dict[str, Restoration] = {}
    for name, part in node["properties"].items():
        properties[names.get(name, name)], backs[name] = _node(
            part, note, (*path, "properties", name)
        )
    whole = {**_keep_known(node, note, path), "properties": properties}
    if required := [names.get(name, name) for name in required_of(node)]:
        whole["required"] = required
    inner = {name: back for name, back in backs.items() if back}
    return whole, Restoration(names={sent: name for name, sent in names.items()}, properties=inner)


def _text(node: Schema, what: str, note: OnChange, path: Path) -> Schema:
    note(path, f"{what} in a string", "Gemini requires every property to be declared")
    description = " ".join(filter(None, (describe(*_about(node)), f"({what})")))
    return {"type": "STRING", "description": description}


def _keep_known(node: Schema, note: OnChange, path: Path) -> Schema:
    kind = node["type"]
    accepted: Schema = {"type": kind.upper()} if kind != "null" else _NULL
    accepted = {**accepted, **{word: node[word] for word in node if word in _KEPT}}
    if node.get("format") in FORMATS.get(kind, ()):
        accepted["format"] = node["format"]
    if portable(node.get("pattern")):
        accepted["pattern"] = node["pattern"]
    # Only strings may have an enum, and no value may be empty.
    if kind == "string" and (values := [value for value in node.get("enum", ()) if value]):
        accepted |= {"enum": values, "format": "enum"}
    apart = {"type", "description", "items", "properties", "required"}
    dropped = {word: node[word] for word in node if word not in accepted and word not in apart}
    if "" in node.get("enum", ()) and "enum" in accepted:
        dropped["enum"] = node["enum"]
    if dropped:
        note(path, f"{comma_list(dropped)} left out of the schema", _WHY)
    return with_description(accepted, describe(node.get("description"), dropped))


def _about(node: Schema) -> tuple[Any, Schema]:
    return node.get("description"), {"default": node["default"]} if "default" in node else {}


NAME = "Gemini"
# More function declarations make the API refuse the request.
MOST_TOOLS = 128
_IMAGES = ImageLimits(
    frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"}),
    largest=18 * 2**20,  # a whole request may have 20 MB
)


class GenerateContent:
    """The generateContent interface.

    Args:
        images: Whether the model accepts images in a function's response, as Gemini 3 does.
    """

    def __init__(self, *, images: bool) -> None:
        self._images = images

    def declare(self, name: str, tool: Converted) -> dict[str, Any]:
        arguments = {"parameters": tool.schema} if tool.schema else {}
        return {"name": name, "description": tool.description or name, **arguments}

    def wrap(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"functionDeclarations": tools}] if tools else []

    def calls(self, answer: Any) -> Iterator[RawCall]:
        """The calls in a response, in its content, or in the parts of that."""
        candidates = members_of(member(answer, "candidates"))
        content = member(candidates[0], "content") if candidates else answer
        for part in members_of(content, "parts"):
            call = member(part, "functionCall", "function_call")
            if call is not None:
                yield member(call, "id") or "", member(call, "name") or "", member(call, "args")

    def messages(self, answers: Iterable[Answered]) -> list[dict[str, Any]]:
        """One content with all results: a response for each call."""
        parts = [{"functionResponse": self._response(*pair)} for pair in answers]
        return [{"role": "user", "parts": parts}] if parts else []

    def _response(self, call: ToolCall, result: ToolResult) -> dict[str, Any]:
        response: dict[str, Any] = {"id": call.id} if call.id else {}
        # by the name that the model used, which may differ from ours
        response["name"] = call.sent
        response["response"] = {"error" if result.is_error else "output": text_of(result)}
        if self._images and (pictures := list(_IMAGES.pictures(result))):
            response["parts"] = [
                {"inlineData": {"mimeType": picture.mime_type, "data": picture.data}}
                for picture in pictures
            ]
        return response
