"""Servers whose schemas cost more to check than the answers are worth."""

from tests.zoo.honest import Honest
from tests.zoo.tools import Tool

CATASTROPHIC = {"type": "string", "pattern": "^(a+)+$"}
UNIQUE = {"type": "array", "uniqueItems": True}
INTEGER = {"type": "integer"}


class Bomb(Honest):
    """`fault` answers with `value` under `schema`; `fault_input` takes such a value."""

    schema = INTEGER
    value = None

    def __init__(self, options):
        super().__init__(options)
        schema = {
            "type": "object",
            "properties": {"value": self.make_schema()},
            **self.definitions_of(),
        }
        fault = self.tools["fault"]
        self.tools["fault"] = fault.renamed("fault", outputSchema=schema)
        definition = {"name": "fault_input", "inputSchema": schema, "annotations": {}}
        self.tools["fault_input"] = Tool(_take, definition)

    def make_schema(self):
        return self.schema

    def definitions_of(self):
        return {}

    def fault(self, request):
        request.text("no fault", structuredContent={"value": self.value})


def _take(_server, request, value=None):
    request.text("no fault" if value is None else "taken")


class RegexDos(Bomb, mode="regex_dos"):
    schema = CATASTROPHIC
    value = "a" * 40 + "!"


class AnyofBomb(Bomb, mode="anyof_bomb"):
    """Doubles the work with every level, and no branch fits."""

    value = "fits nowhere"

    def make_schema(self):
        return {"$ref": f"#/$defs/level{self.option('count', 24)}"}

    def definitions_of(self):
        levels = {"level0": {"type": "integer"}}
        for number in range(self.option("count", 24)):
            below = {"$ref": f"#/$defs/level{number}"}
            levels[f"level{number + 1}"] = {"anyOf": [below, below]}
        return {"$defs": levels}


class UniqueItems(Bomb, mode="unique_items"):
    schema = UNIQUE

    @property
    def value(self):
        return [{"number": number} for number in range(self.option("count", 20_000))]


class RefRemote(Bomb, mode="ref_remote"):
    """Points to a schema elsewhere; whoever fetches it is seen at `--url`."""

    value = "anything"

    def make_schema(self):
        return {"$ref": self.option("url", "http://127.0.0.1:9/schema.json")}


class RefLoop(Bomb, mode="ref_loop"):
    value = "anything"

    def make_schema(self):
        return {"$ref": "#/$defs/a"}

    def definitions_of(self):
        return {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}


class DeepSchema(Bomb, mode="deep_schema"):
    value = "anything"

    def make_schema(self):
        schema = {"type": "string"}
        for _ in range(self.option("count", 400)):
            schema = {"anyOf": [schema, {"type": "null"}]}
        return schema


class WideSchema(Bomb, mode="wide_schema"):
    value = "anything"

    def make_schema(self):
        return {"anyOf": [{"const": number} for number in range(self.option("count", 50_000))]}


class OutputMismatch(Bomb, mode="output_mismatch"):
    """Answers something else than its own output schema promises."""

    value = "no integer"
