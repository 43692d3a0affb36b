"""A server of the handshake era, `gossip.py NAME FILE`, that speaks unasked after a call."""

import json
import sys
from itertools import count
from pathlib import Path

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
QUESTIONS = {
    "elicitation/create": {"message": "who are you?", "requestedSchema": FORM},
    "sampling/createMessage": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "say it"}}],
        "maxTokens": 9,
    },
    "roots/list": {},
}


class Gossip:
    """Speaks when `speak` was called; what became of its questions is in the file then."""

    def __init__(self, name, path):
        self.name = name
        self.path = Path(path)
        self.uri = f"{name}://thing"
        self.tools = ["speak"]
        self.asked = {}
        self.answers = {}
        self.ids = count(1)

    def send(self, **message):
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def take(self, message):
        method = message.get("method")
        if method is None:
            self.answered(message)
        elif "id" in message:
            self.answer(message["id"], method, message.get("params", {}))

    def answered(self, message):
        method = self.asked.pop(message["id"])
        self.answers[method] = "result" if "result" in message else message["error"]["code"]
        if not self.asked:
            whole = self.path.with_suffix(".new")
            whole.write_text(json.dumps(self.answers))
            whole.rename(self.path)

    def answer(self, request, method, params):
        match method:
            case "initialize":
                changing = {"listChanged": True}
                can = {"tools": changing, "resources": {**changing, "subscribe": True}}
                self.reply(
                    request,
                    protocolVersion="2025-11-25",
                    capabilities={**can, "logging": {}},
                    serverInfo={"name": self.name, "version": "1"},
                )
            case "tools/list":
                schema = {"type": "object"}
                self.reply(request, tools=[{"name": x, "inputSchema": schema} for x in self.tools])
            case "resources/list":
                self.reply(request, resources=[{"name": "thing", "uri": self.uri}])
            case "resources/templates/list":
                self.reply(request, resourceTemplates=[])
            case "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe":
                self.reply(request)
            case "tools/call" if params["name"] == "speak":
                self.reply(request, content=[])
                self.speak()
            case _:
                self.send(id=request, error={"code": -32601, "message": "Method not found"})

    def speak(self):
        self.tools.append(f"more_{len(self.tools)}")
        told = {"level": "error", "logger": self.name, "data": "psst"}
        self.send(method="notifications/message", params=told)
        self.send(method="notifications/progress", params={"progressToken": 1, "progress": 1})
        self.send(method="notifications/resources/updated", params={"uri": self.uri})
        self.send(method="notifications/tools/list_changed")
        for method, params in QUESTIONS.items():
            number = next(self.ids)
            self.asked[number] = method
            self.send(id=number, method=method, params=params)

    def reply(self, request, **result):
        self.send(id=request, result=result)


if __name__ == "__main__":
    gossip = Gossip(*sys.argv[1:])
    for line in sys.stdin:
        gossip.take(json.loads(line))
