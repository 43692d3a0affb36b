"""A well-behaved MCP server of both eras, made to be spoiled one method at a time."""

# ruff: noqa: PTH123 - importing pathlib would cost more than everything else at start-up

import json
import os
import signal
import time

from tests.zoo.offers import NEVER, PROMPTS, RESOURCES, TEMPLATES, complete, contents, messages
from tests.zoo.pipes import Pipes
from tests.zoo.tools import TOOLS

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSION = "2026-07-28"
HANDSHAKE_ONLY = {
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
}
STATELESS_ONLY = {"server/discover", "subscriptions/listen"}
CACHEABLE = {"server/discover", "resources/read"}
"""Besides the lists: results that must say how long they may be kept."""

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL = -32600, -32601, -32602, -32603
NO_CAPABILITY, NO_VERSION = -32021, -32022

INFO = {"name": "zoo", "version": "1.0"}

LIFETIME = 600
"""Seconds after which any of these servers ends, whatever its fault and its test."""


class Request:
    """One question of the client; answered at most once, and not after it was cancelled."""

    __slots__ = ("id", "method", "open", "params", "server", "stateless")

    def __init__(self, server, request_id, method, params):
        self.server = server
        self.id = request_id
        self.method = method
        self.params = params
        self.stateless = False
        self.open = True

    @property
    def meta(self):
        return self.params.get("_meta") or {}

    @property
    def capabilities(self):
        """What the client declared that it can be asked for."""
        return self.meta.get(CAPABILITIES) if self.stateless else self.server.client_capabilities

    def answer(self, result):
        if self.open:
            self.server.forget(self)
            self.server.answer(self, result)

    def fail(self, code, message, data=None):
        if self.open:
            self.server.forget(self)
            error = {"code": code, "message": message}
            self.server.say(
                {
                    "jsonrpc": "2.0",
                    "id": self.id,
                    "error": error if data is None else {**error, "data": data},
                }
            )

    def text(self, text, **more):
        self.answer({"content": [{"type": "text", "text": text}], **more})

    def value(self, value):
        """A result in both forms: as text, and structured."""
        self.text(json.dumps(value), structuredContent={"result": value})

    def later(self, seconds, action, *arguments):
        """Do it after a while, unless the request is cancelled before."""
        self.server.after(seconds, lambda: action(*arguments) if self.open else None)


class Honest(Pipes):
    modes = {}  # noqa: RUF012 - filled by class statements, then only read
    mode = "good"
    era = "both"
    """`handshake`, `stateless`, or `both`: then the first request decides."""
    info = INFO
    instructions = "Every tool does what its name says."

    def __init_subclass__(cls, mode=None):
        cls.mode = mode
        if mode:
            cls.modes[mode] = cls

    def __init__(self, options):
        super().__init__()
        self.options = options
        self.era = self.option("era", self.era)
        self.folder = os.environ.get("ZOO_DIR")
        self.tools = dict(TOOLS)
        self.spoken = None
        self.initialized = False
        self.was_ready = False
        self.client_capabilities = {}
        self.requests = {}
        self.cancelled = []
        self.questions = {}
        self.question_number = 0
        self.listening = {}
        self.subscribed = set()
        self.log_level = None
        self.counted = 0

    def option(self, name, default):
        return type(default)(self.options.get(name, default))

    def main(self):
        signal.alarm(LIFETIME)
        self.record("starts", f"{os.getpid()} {time.time():.3f} {self.mode}")
        try:
            self.start()
            self.run()
        except BrokenPipeError:
            self.exit(0)

    def start(self):
        """Before anything is read."""

    def ready(self):
        """After the handshake, or after the first answer where there is none."""

    def fault(self, request):
        """What the tools `fault` and `fault_hinted` do."""
        request.text("no fault")

    def record(self, name, text):
        """Add a line to one of the files that tests read."""
        if self.folder:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            fd = os.open(f"{self.folder}/{name}", flags, 0o600)
            os.write(fd, f"{text}\n".encode())
            os.close(fd)

    def recorded(self, name):
        """How many lines such a file has."""
        if not self.folder:
            return 0
        try:
            with open(f"{self.folder}/{name}", "rb") as file:
                return file.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def encode(self, message):
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()

    def say(self, message):
        self.write(self.encode(message) + b"\n")

    def notify(self, method, params=None):
        self.say({"jsonrpc": "2.0", "method": method, "params": params or {}})

    def answer(self, request, result):
        self.say(self.envelope(request, result))

    def envelope(self, request, result):
        return {"jsonrpc": "2.0", "id": request.id, "result": self.dress(request, result)}

    def dress(self, request, result):
        """The result with what the request's era asks of every result."""
        if not request.stateless:
            return result
        dressed = {"resultType": "complete", "_meta": {SERVER_INFO: self.info}, **result}
        if request.method in CACHEABLE or request.method.endswith("/list"):
            dressed = {"ttlMs": 0, "cacheScope": "private", **dressed}
        return dressed

    def line(self, line):
        if not line.strip():
            return
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if method is None:
            self.replied(message)
        elif "id" in message:
            self.asked(Request(self, message["id"], method, params))
        else:
            self.told(method, params)

    def asked(self, request):
        self.record("methods", request.method)
        self.requests[request.id] = request
        request.stateless = self._era_of(request) == "stateless"
        refusal = self._refusal(request)
        name = f"on_{request.method.replace('/', '_').lower()}"
        if refusal:
            request.fail(*refusal)
        elif handle := getattr(self, name, None):
            self.spoken = "stateless" if request.stateless else "handshake"
            handle(request)
            if request.stateless and not self.was_ready:
                self.was_ready = True
                self.after(0, self.ready)
        else:
            request.fail(NO_METHOD, "Method not found", request.method)

    def told(self, method, params):
        self.record("methods", method)
        if method == "notifications/initialized":
            self.initialized = True
            self.ready()
        elif method == "notifications/cancelled":
            request_id = params.get("requestId")
            self.cancelled.append(request_id)
            self.record("cancelled", request_id)
            if request := self.requests.get(request_id):
                self.forget(request)

    def replied(self, message):
        if then := self.questions.pop(message.get("id"), None):
            then(message)

    def forget(self, request):
        request.open = False
        self.requests.pop(request.id, None)
        self.listening.pop(request.id, None)

    def ask(self, request, method, params, then):
        """Ask the client something and give `then` its reply, the way the request's era does."""
        if not request.stateless:
            self.question_number += 1
            question = f"zoo-{self.question_number}"
            self.questions[question] = then
            self.say({"jsonrpc": "2.0", "id": question, "method": method, "params": params})
        elif (responses := request.params.get("inputResponses")) is None:
            self.require(request, {"question": {"method": method, "params": params}})
        elif request.params.get("requestState") != self.state_of(request):
            request.fail(INVALID_PARAMS, "requestState is not the one that was given")
        else:
            then({"result": responses["question"]})

    def require(self, request, questions):
        """Answer that the request must be repeated with the client's input."""
        request.answer(
            {
                "resultType": "input_required",
                "inputRequests": questions,
                "requestState": self.state_of(request),
            }
        )

    def state_of(self, request):
        return f"state of {request.params.get('name')}"

    def announce(self, method, key, params=None, uri=None):
        """Tell a change to those who want to know, the way their era does."""
        if self.spoken != "stateless":
            self.notify(method, params)
            return
        for subscription, wishes in tuple(self.listening.items()):
            wish = wishes.get(key)
            if uri in wish if uri and wish else wish:
                self.notify(method, {**(params or {}), "_meta": {SUBSCRIPTION: subscription}})

    def tools_changed(self):
        self.announce("notifications/tools/list_changed", "toolsListChanged")

    def _era_of(self, request):
        if self.era != "both":
            return self.era
        return self.spoken or ("stateless" if VERSION in request.meta else "handshake")

    def _refusal(self, request):
        """Why the request is not served at all, as the arguments of `Request.fail`."""
        if request.stateless:
            return _stateless_refusal(request)
        if request.method in STATELESS_ONLY:
            return _no_method(request)
        if not self.initialized and request.method not in {"initialize", "ping"}:
            return INVALID_REQUEST, "the handshake comes first"
        return None

    def on_initialize(self, request):
        self.client_capabilities = request.params.get("capabilities") or {}
        asked = request.params.get("protocolVersion")
        request.answer(
            {
                "protocolVersion": asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
                "capabilities": self.capabilities(),
                "serverInfo": self.info,
                "instructions": self.instructions,
            }
        )

    def on_server_discover(self, request):
        request.answer(
            {
                "supportedVersions": [STATELESS_VERSION],
                "capabilities": self.capabilities(),
                "instructions": self.instructions,
            }
        )

    def capabilities(self):
        return {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }

    def on_ping(self, request):
        request.answer({})

    def on_tools_list(self, request):
        request.answer({"tools": self.definitions()})

    def definitions(self):
        """The entries of `tools/list`."""
        return [tool.definition for tool in self.tools.values()]

    def on_tools_call(self, request):
        name, arguments = request.params.get("name"), request.params.get("arguments") or {}
        self.record("calls", f"{name} {json.dumps(arguments)[:200]}")
        tool = self.tools.get(name)
        if tool is None:
            request.fail(INVALID_PARAMS, f"Unknown tool: {name}")
        elif wrong := tool.complaint(arguments):
            request.text(wrong, isError=True)
        else:
            tool.run(self, request, **arguments)

    def on_resources_list(self, request):
        request.answer({"resources": list(RESOURCES)})

    def on_resources_templates_list(self, request):
        request.answer({"resourceTemplates": list(TEMPLATES)})

    def on_resources_read(self, request):
        uri = request.params.get("uri")
        if uri == f"zoo://item/{NEVER}":
            return
        if found := contents(uri):
            request.answer({"contents": [found]})
        else:
            request.fail(INVALID_PARAMS, f"Unknown resource: {uri}")

    def on_resources_subscribe(self, request):
        uri = request.params["uri"]
        if uri == "zoo://refused":
            request.fail(INVALID_PARAMS, f"Unknown resource: {uri}")
        else:
            self.subscribed.add(uri)
            request.answer({})

    def on_resources_unsubscribe(self, request):
        self.subscribed.discard(request.params["uri"])
        request.answer({})

    def on_prompts_list(self, request):
        request.answer({"prompts": list(PROMPTS)})

    def on_prompts_get(self, request):
        name, arguments = request.params.get("name"), request.params.get("arguments") or {}
        if arguments.get("name") == NEVER:
            return
        if found := messages(name, arguments):
            request.answer({"messages": found})
        else:
            request.fail(INVALID_PARAMS, f"Unknown prompt: {name}")

    def on_completion_complete(self, request):
        values = complete(request.params["argument"]["value"])
        request.answer({"completion": {"values": values, "total": len(values), "hasMore": False}})

    def on_logging_setlevel(self, request):
        self.log_level = request.params["level"]
        request.answer({})

    def on_subscriptions_listen(self, request):
        wishes = {key: wish for key, wish in request.params["notifications"].items() if wish}
        self.listening[request.id] = wishes
        self.notify(
            "notifications/subscriptions/acknowledged",
            {"notifications": wishes, "_meta": {SUBSCRIPTION: request.id}},
        )


def _stateless_refusal(request):
    if request.method == "initialize":
        return _other_version(request.params.get("protocolVersion"))
    if not {VERSION, CAPABILITIES} <= request.meta.keys():
        return INVALID_PARAMS, "params._meta lacks the required keys"
    if request.meta[VERSION] != STATELESS_VERSION:
        return _other_version(request.meta[VERSION])
    return _no_method(request) if request.method in HANDSHAKE_ONLY else None


def _other_version(requested):
    data = {"supported": [STATELESS_VERSION], "requested": requested}
    return NO_VERSION, "Unsupported protocol version", data


def _no_method(request):
    return NO_METHOD, "Method not found", request.method


class Good(Honest, mode="good"):
    """Speaks both eras, without fault."""


class GoodLegacy(Honest, mode="good_legacy"):
    era = "handshake"


class GoodModern(Honest, mode="good_modern"):
    era = "stateless"
