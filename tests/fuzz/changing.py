"""A server that becomes another one: `changing.py NAME GENERATION LOG`, on pipes, both eras.

Its tools bear its age, `GENERATION.VERSION`, in a name and in a schema. Every call that reaches it
is noted in LOG.
"""

import json
import os
import sys

if not __package__:  # run as a script, isolated from everything that is not the standard library
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../.."))  # noqa: PTH100 - pathlib is slow

from tests.zoo.honest import Honest
from tests.zoo.tools import READ_ONLY, Tool


def definition(name, **properties):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, **properties}}
    return {
        "name": name,
        "description": name,
        "inputSchema": {**schema, "required": [*schema["properties"]]},
        "annotations": READ_ONLY,
    }


class Changing(Honest):
    def __init__(self, name, generation, log):
        super().__init__({})
        self.name = name
        self.generation = generation
        self.log = log
        self.version = 0
        self.define()

    @property
    def age(self):
        return f"{self.generation}.{self.version}"

    def define(self):
        age = {"age": {"const": self.age}}
        definitions = (
            definition("who"),
            definition("grow"),
            definition("checked", **age),
            definition(f"aged_{self.age.replace('.', '_')}"),
        )
        self.tools = {one["name"]: Tool(tell, one) for one in definitions}
        self.tools["grow"] = Tool(grow, definition("grow"))

    def on_tools_call(self, request):
        params = request.params
        note = {**params["arguments"], "tool": params["name"], "server": self.name, "by": self.age}
        fd = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, json.dumps(note).encode() + b"\n")
        os.close(fd)
        super().on_tools_call(request)


def tell(server, request, **_):
    request.text(f"{server.name} {server.age}")


def grow(server, request, **_):
    server.version += 1
    server.define()
    server.tools_changed()
    request.text(server.age)


if __name__ == "__main__":
    Changing(*sys.argv[1:]).main()
