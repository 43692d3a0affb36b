"""Servers that say far too much."""

from tests.zoo.honest import SUBSCRIPTION, Honest
from tests.zoo.pipes import STDERR
from tests.zoo.tools import sampling

BLOCK = 1000
"""Messages written at once."""


class Flood(Honest):
    """At the tool `fault`: many copies of one message, then the answer."""

    count = 20_000

    def fault(self, request):
        line = self.encode(self.message(request)) + b"\n"
        count = self.option("count", self.count)
        for start in range(0, count, BLOCK):
            self.write(self.block(line, range(start, min(start + BLOCK, count))))
        self.afterwards(request)

    def block(self, line, numbers):
        return line * len(numbers)

    def message(self, request):
        raise NotImplementedError

    def afterwards(self, request):
        request.text("no fault")


class FloodNotifications(Flood, mode="flood_notifications"):
    count = 200_000

    def message(self, _request):
        params = {"why": "because it can"}
        return {"jsonrpc": "2.0", "method": "notifications/zoo", "params": params}


class FloodListChanged(Flood, mode="flood_list_changed"):
    def message(self, _request):
        params = _stream(self)
        return {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params}


class FloodUpdated(Flood, mode="flood_updated"):
    def message(self, _request):
        params = {"uri": "zoo://text", **_stream(self)}
        return {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}


def _stream(server):
    """What marks a notification as part of a listening stream, where there is one."""
    return next(({"_meta": {SUBSCRIPTION: stream}} for stream in server.listening), {})


class FloodLogs(Flood, mode="flood_logs"):
    count = 50_000

    def message(self, _request):
        params = {"level": "error", "logger": "zoo", "data": "x" * 200}
        return {"jsonrpc": "2.0", "method": "notifications/message", "params": params}


class FloodRequests(Flood, mode="flood_requests"):
    """Asks thousands of things at once, and reads no answer before all are asked."""

    def message(self, _request):
        method = "sampling/createMessage"
        return {"jsonrpc": "2.0", "id": "zoo-NUMBER", "method": method, "params": sampling("hi")}

    def block(self, line, numbers):
        return b"".join(line.replace(b"NUMBER", b"%d" % number) for number in numbers)


class FloodProgress(Flood, mode="flood_progress"):
    """A burst of progress, then some more twenty times a second; never an answer."""

    def message(self, request):
        token = request.meta.get("progressToken", request.id)
        params = {"progressToken": token, "progress": 1, "message": "soon"}
        return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}

    def afterwards(self, request):
        self.say(self.message(request))
        request.later(0.05, self.afterwards, request)


class FloodStderr(Honest, mode="flood_stderr"):
    def fault(self, request):
        line = b"zoo: something that nobody needs to know happened again\n"
        for _ in range(self.option("bytes", 16 << 20) // len(line) // BLOCK):
            self.write(line * BLOCK, STDERR)
        request.text("no fault")


class StderrEndlessLine(Honest, mode="stderr_endless_line"):
    """Megabytes on stderr without a single newline."""

    def fault(self, request):
        for _ in range(self.option("bytes", 16 << 20) // 65536):
            self.write(b"." * 65536, STDERR)
        request.text("no fault")


class RelistLoop(Honest, mode="relist_loop"):
    """Says after every list that the list has changed."""

    def on_tools_list(self, request):
        super().on_tools_list(request)
        self.tools_changed()


class ListenEnds(Honest, mode="listen_ends"):
    """Ends every listening stream at once, so that an eager client asks again for ever."""

    era = "stateless"

    def on_subscriptions_listen(self, request):
        super().on_subscriptions_listen(request)
        request.answer({"_meta": {SUBSCRIPTION: request.id}})
