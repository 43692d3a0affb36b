"""Servers whose messages are too large, too wide or without end."""

from tests.zoo.faults.protocol import Spoiled
from tests.zoo.honest import Honest

MIB = 1024 * 1024


class HugeLine(Honest, mode="huge_line"):
    def fault(self, request):
        request.text("x" * self.option("bytes", 64 * MIB))


class HugeNotification(Honest, mode="huge_notification"):
    def fault(self, request):
        data = "x" * self.option("bytes", 64 * MIB)
        self.notify("notifications/message", {"level": "info", "data": data})
        request.text("no fault")


class HugeLineIdLast(Spoiled, mode="huge_line_id_last"):
    """The id comes after the result, where a reader that cuts lines has to look for it."""

    def spoil(self, request, envelope):
        envelope["result"]["content"][0]["text"] = "x" * self.option("bytes", 64 * MIB)
        last = {"jsonrpc": "2.0", "result": envelope["result"], "id": request.id}
        return self.encode(last) + b"\n"


class EndlessLine(Honest, mode="endless_line"):
    """Begins an answer and never ends it; only the pipe slows it down."""

    def fault(self, request):
        start, _, _ = self.encode(self.envelope(request, {"content": "x"})).partition(b"x")
        self.write(start)
        while True:
            self.write(b"x" * 65536)


class HugeInstructions(Honest, mode="huge_instructions"):
    def __init__(self, options):
        super().__init__(options)
        self.instructions = "Read this first. " * (self.option("bytes", 4 * MIB) // 17)


class WideJson(Honest, mode="wide_json"):
    def fault(self, request):
        items = self.option("count", 2_000_000)
        request.text("wide", structuredContent={"items": [0] * items, "keys": _keys(items // 8)})


def _keys(count):
    return {f"k{number}": None for number in range(count)}


class HugeError(Honest, mode="huge_error"):
    def fault(self, request):
        request.fail(-32000, "e" * self.option("bytes", 8 * MIB), {"more": "d" * MIB})


class ListHuge(Honest, mode="list_huge"):
    """The list of tools alone is larger than any message may be."""

    def definitions(self):
        filler = "d" * self.option("bytes", 40 * MIB)
        return [*super().definitions(), {**super().definitions()[0], "description": filler}]


class StdoutBufferFull(Honest, mode="stdout_buffer_full"):
    """Writes megabytes before it reads again: both pipes fill if the client waits for it."""

    def fault(self, request):
        noise = self.encode({"jsonrpc": "2.0", "method": "notifications/zoo", "params": {}})
        self.write((noise + b"\n") * (self.option("bytes", 4 * MIB) // len(noise)))
        request.text("no fault")
