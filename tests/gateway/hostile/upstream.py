"""A server of the handshake era in plain Python, which counts whatever reaches it.

It starts in no time and reads its input as strictly as servers may: a line is a message.
"""

import json
import sys
from itertools import count

TOOLS = ("echo", "hang", "noise", "giant", "ask", "touch", "stats")
NOTES = "notes://"


class Server:
    """Answers; calls of `hang` and `ask` stay open until cancelled or answered."""

    def __init__(self):
        self.open = {}
        self.asked = {}
        self.cancelled = 0
        self.strange = []
        self.followed = set()
        self._ids = count(1)

    def take(self, line):
        try:
            message = json.loads(line.decode())
        except ValueError:
            self.strange.append(repr(line[:80]))
            return
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            self.strange.append(repr(line[:80]))
        elif "method" not in message:
            self._answered(message)
        elif "id" in message:
            self._request(message["id"], message["method"], message.get("params") or {})
        elif message["method"] == "notifications/cancelled":
            self._cancel(message["params"]["requestId"])
        elif message["method"] not in {
            "notifications/initialized",
            "notifications/roots/list_changed",
        }:
            self.strange.append(message["method"])

    def _request(self, request_id, method, params):
        match method:
            case "initialize":
                kinds = ("tools", "resources", "logging")
                capabilities = {kind: {} for kind in kinds}
                capabilities["resources"]["subscribe"] = True
                info = {"name": "counts", "version": "1"}
                version = params["protocolVersion"]
                self._result(
                    request_id,
                    protocolVersion=version,
                    capabilities=capabilities,
                    serverInfo=info,
                )
            case "tools/list":
                schema = {"type": "object"}
                self._result(request_id, tools=[{"name": n, "inputSchema": schema} for n in TOOLS])
            case "resources/list":
                notes = [{"name": "notes", "uri": NOTES}] if "notes" in sys.argv else []
                self._result(request_id, resources=notes)
            case "resources/subscribe":
                self.followed.add(params["uri"])
                self._result(request_id)
            case "resources/unsubscribe":
                self.followed.discard(params["uri"])
                self._result(request_id)
            case "tools/call":
                getattr(self, f"_{params['name']}")(request_id, params)
            case "ping" | "logging/setLevel":
                self._result(request_id)
            case _:
                say({"id": request_id, "error": {"code": -32601, "message": "no such method"}})

    def _echo(self, request_id, params):
        self._text(request_id, json.dumps(params["arguments"].get("said")))

    def _giant(self, request_id, params):
        self._text(request_id, "x" * params["arguments"]["size"])

    def _hang(self, request_id, params):
        self.open[request_id] = params
        self._progress(params, 0)

    def _noise(self, request_id, params):
        """Report progress as often as told, then answer."""
        for number in range(params["arguments"]["times"]):
            self._progress(params, number + 1, "y" * params["arguments"].get("size", 0))
        self._text(request_id, "quiet")

    def _touch(self, request_id, params):
        """Say as often as told that every resource that is followed has changed."""
        for _ in range(params["arguments"]["times"]):
            for uri in self.followed:
                say({"method": "notifications/resources/updated", "params": {"uri": uri}})
        self._text(request_id, "touched")

    def _ask(self, request_id, params):
        question = next(self._ids)
        self.open[request_id] = params
        self.asked[question] = request_id
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        params = {"message": "who?", "requestedSchema": schema}
        say({"id": question, "method": "elicitation/create", "params": params})

    def _stats(self, request_id, _):
        told = {
            "open": len(self.open),
            "cancelled": self.cancelled,
            "strange": self.strange,
            "followed": len(self.followed),
        }
        self._text(request_id, json.dumps(told))

    def _answered(self, message):
        request_id = self.asked.pop(message.get("id"), None)
        if request_id is None:
            self.strange.append("an answer to nothing")
        elif self.open.pop(request_id, None) is not None:
            self._text(request_id, json.dumps(message.get("result")))

    def _cancel(self, request_id):
        if self.open.pop(request_id, None) is not None:
            self.cancelled += 1

    def _progress(self, params, progress, words=""):
        if (token := params.get("_meta", {}).get("progressToken")) is not None:
            told = {"progressToken": token, "progress": progress, "message": words}
            say({"method": "notifications/progress", "params": told})

    def _text(self, request_id, text):
        self._result(request_id, content=[{"type": "text", "text": text}])

    def _result(self, request_id, **result):
        say({"id": request_id, "result": result})


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    server = Server()
    for one in sys.stdin.buffer:
        server.take(one)
