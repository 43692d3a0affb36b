"""The tools of every server here."""

import json
import os

from tests.zoo import children
from tests.zoo.offers import BLOB

READ_ONLY = {"readOnlyHint": True}
IDEMPOTENT = {"readOnlyHint": False, "idempotentHint": True}
DESTRUCTIVE = {"readOnlyHint": False, "destructiveHint": True}
NUMBER, STRING, BOOLEAN = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "title": "Name"}},
    "required": ["name"],
}


class Tool:
    """What a tool says of itself, and what it does."""

    def __init__(self, run, definition):
        self.run = run
        self.definition = definition

    @property
    def name(self):
        return self.definition["name"]

    def renamed(self, name, **changes):
        return Tool(self.run, {**self.definition, "name": name, **changes})

    def complaint(self, arguments):
        """What is wrong with the arguments, in words, or nothing."""
        schema = self.definition["inputSchema"]
        unknown = sorted(arguments.keys() - schema.get("properties", {}).keys())
        missing = sorted(set(schema.get("required", ())) - arguments.keys())
        if unknown or missing:
            return f"unknown arguments: {unknown}, missing: {missing}"
        return None


def tool(description, annotations, output=None, **arguments):
    """Make a tool of a function; an argument whose schema has a default may be left out."""

    def decorate(run):
        required = [name for name, schema in arguments.items() if "default" not in schema]
        schema = {"type": "object", "properties": arguments, "required": required}
        definition = {
            "name": run.__name__,
            "description": description,
            "inputSchema": schema,
            "annotations": annotations,
        }
        if output:
            definition["outputSchema"] = {
                "type": "object",
                "properties": {"result": output},
                "required": ["result"],
            }
        return Tool(run, definition)

    return decorate


@tool("Gives the text back", READ_ONLY, text=STRING)
def echo(_server, request, text):
    request.text(text)


@tool("Gives the number back", READ_ONLY, output=NUMBER, n=NUMBER)
def nonce(_server, request, n):
    request.value(n)


@tool("Adds two numbers", READ_ONLY, output=NUMBER, a=NUMBER, b=NUMBER)
def add(_server, request, a, b):
    request.value(a + b)


@tool("Tells the process id", READ_ONLY, output=NUMBER)
def pid(_server, request):
    request.value(os.getpid())


@tool("Answers after a while", READ_ONLY, seconds=NUMBER)
def sleep(_server, request, seconds):
    request.later(seconds, request.text, f"slept {seconds} s")


@tool("Counts one up, for good", DESTRUCTIVE, output=NUMBER)
def count(server, request):
    server.record("count", os.getpid())
    server.counted += 1
    request.value(server.recorded("count") or server.counted)


@tool("Tells how often `count` was called", READ_ONLY, output=NUMBER)
def times(server, request):
    request.value(server.recorded("count") or server.counted)


@tool("Answers with that many bytes of text", READ_ONLY, bytes=NUMBER)
def big(_server, request, bytes):  # noqa: A002 - the argument's name on the wire
    request.text("x" * int(bytes))


@tool("Fails with the message", READ_ONLY, message=STRING)
def fail(_server, request, message):
    request.text(message, isError=True)


@tool("Reports progress, then answers", READ_ONLY, steps=NUMBER, interval=NUMBER)
def progress(server, request, steps, interval):
    def step(done):
        if done > steps:
            request.text(f"{steps} steps")
            return
        token = request.meta.get("progressToken")
        if token is not None:
            report = {"progressToken": token, "progress": done, "total": steps}
            server.notify("notifications/progress", {**report, "message": f"step {done}"})
        request.later(interval, step, done + 1)

    step(1)


@tool("Sends a log message", READ_ONLY, level=STRING, text=STRING)
def log(server, request, level, text):
    if server.log_level or request.meta.get("io.modelcontextprotocol/logLevel"):
        server.notify("notifications/message", {"level": level, "logger": "zoo", "data": text})
    request.text("logged")


@tool(
    "Asks the person for a name",
    READ_ONLY,
    url={**BOOLEAN, "default": False},
    page={**STRING, "default": "https://example.com/sign-in"},
)
def ask(server, request, url=False, page="https://example.com/sign-in"):
    if not request.capabilities.get("elicitation"):
        request.text("the client cannot be asked", isError=True)
        return
    form = {"mode": "form", "message": "What is your name?", "requestedSchema": FORM}
    visit = {"mode": "url", "message": "Sign in", "url": page}
    if not request.stateless:
        visit["elicitationId"] = "zoo-page"
    server.ask(request, "elicitation/create", visit if url else form, _relay(request))


@tool("Asks the client's model", READ_ONLY)
def sample(server, request):
    if "sampling" not in request.capabilities:
        request.text("the client has no model", isError=True)
        return
    server.ask(request, "sampling/createMessage", sampling("Say hello"), _relay(request))


@tool("Asks for the client's roots", READ_ONLY)
def roots(server, request):
    if "roots" not in request.capabilities:
        request.text("the client has no roots", isError=True)
        return
    server.ask(request, "roots/list", {}, _relay(request))


def sampling(text):
    """The parameters of a request to the client's model."""
    said = {"role": "user", "content": {"type": "text", "text": text}}
    return {"messages": [said], "maxTokens": 10}


def _relay(request):
    def then(reply):
        if "error" in reply:
            request.text(f"refused: {reply['error'].get('message')}", isError=True)
        else:
            request.text(json.dumps(reply["result"]))

    return then


@tool("Ends the server in the middle of the call", DESTRUCTIVE)
def crash(server, _request):
    server.exit(7)


@tool("Lists the ids of cancelled requests", READ_ONLY)
def cancelled(server, request):
    request.value(server.cancelled)


@tool("Lists environment names, or tells one's value", READ_ONLY, name={**STRING, "default": ""})
def env(_server, request, name=""):
    request.value(os.environ.get(name) if name else environment())


def environment():
    """The names we were started with; in the C locale Python adds LC_CTYPE to its own copy."""
    try:
        fd = os.open("/proc/self/environ", os.O_RDONLY)
    except FileNotFoundError:
        return sorted(os.environ)
    entries = os.read(fd, 1 << 20).decode("utf-8", "replace").split("\0")
    os.close(fd)
    return sorted(entry.partition("=")[0] for entry in entries if entry)


@tool("Tells the working directory", READ_ONLY)
def cwd(_server, request):
    request.value(os.getcwd())  # noqa: PTH109 - pathlib is slow to import


@tool("Lists open file descriptors and what they are", READ_ONLY)
def fds(_server, request):
    request.value(open_descriptors())


def open_descriptors():
    """Number to target, without the one that reading the list takes."""
    found = {}
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - pathlib is slow to import
        try:
            found[name] = os.readlink(f"/dev/fd/{name}")  # noqa: PTH115 - the same
        except OSError:
            continue
    return found


@tool("Starts a child that ignores SIGTERM, in the same process group", DESTRUCTIVE)
def spawn_child(server, request):
    born(server, request, children.child())


@tool(
    "Starts a daemon in a session of its own, `clean` without environment",
    DESTRUCTIVE,
    clean={**BOOLEAN, "default": False},
)
def spawn_daemon(server, request, clean=False):
    born(server, request, children.daemon(clean=clean))


def born(server, request, child):
    server.record("children", child)
    request.value(child)


@tool("Adds a tool and says that the list has changed", IDEMPOTENT)
def change_tools(server, request):
    name = f"extra_{len(server.tools)}"
    server.tools[name] = echo.renamed(name)
    server.tools_changed()
    request.text(name)


@tool("Says that a resource was updated", IDEMPOTENT, uri=STRING)
def touch(server, request, uri):
    if request.stateless or uri in server.subscribed:
        method, key = "notifications/resources/updated", "resourceSubscriptions"
        server.announce(method, key, {"uri": uri}, uri)
    request.text("touched")


@tool("Answers with one content block of each kind", READ_ONLY)
def blocks(_server, request):
    request.answer(
        {
            "content": [
                {"type": "text", "text": "words"},
                {"type": "image", "data": BLOB, "mimeType": "image/png"},
                {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
                {"type": "resource_link", "uri": "zoo://text", "name": "text"},
                {"type": "resource", "resource": {"uri": "zoo://text", "text": "the text"}},
            ]
        }
    )


@tool("Shows what is wrong with this server, where a call can show it", {})
def fault(server, request):
    server.fault(request)


TOOLS = {
    each.name: each
    for each in (
        echo,
        nonce,
        add,
        pid,
        sleep,
        count,
        times,
        big,
        fail,
        progress,
        log,
        ask,
        sample,
        roots,
        crash,
        cancelled,
        env,
        cwd,
        fds,
        spawn_child,
        spawn_daemon,
        change_tools,
        touch,
        blocks,
        fault,
        fault.renamed("fault_hinted", annotations=IDEMPOTENT),
    )
}
