"""A server that, asked to, writes lines that are almost messages; then it answers."""

import json
import os
import random
import sys

if not __package__:  # run as a script, isolated from everything that is not the standard library
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../.."))  # noqa: PTH100 - pathlib is slow

from tests.zoo.honest import Honest
from tests.zoo.tools import NUMBER, READ_ONLY, tool

WORDS = [
    {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}},
    {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}},
    {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "zoo://text"}},
    {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
    {"jsonrpc": "2.0", "id": "f", "method": "ping"},
    {"jsonrpc": "2.0", "id": 1.5, "method": "roots/list"},
    {"jsonrpc": "2.0", "id": "s", "method": "sampling/createMessage", "params": {"messages": []}},
    {"jsonrpc": "2.0", "id": "nobody asked", "result": {"content": [{"type": "text", "text": ""}]}},
    {"jsonrpc": "2.0", "id": "nobody asked", "error": {"code": -32700, "message": "what?"}},
    [{"jsonrpc": "2.0", "method": "notifications/message"}],
    "just text", 12345678901234567890, None, {}, [],
]  # fmt: skip
LINES = [json.dumps(word).encode() for word in WORDS]
PIECES = [
    b"\xff\xfe",
    b"\x00",
    b"\\ud800",
    b"1e999",
    b'"',
    b"{",
    b"]",
    b"\xe2\x80\xa8",
    b"\r",
    b" ",
]


def lines(seed, count):
    """So many lines; the same for the same seed."""
    chance = random.Random(seed)
    return b"".join(_mangled(chance) + b"\n" for _ in range(count))


def _mangled(chance):
    line = chance.choice(LINES)
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        at = chance.randrange(len(line) + 1)
        match chance.randrange(7):
            case 0:
                line = line[:at]
            case 1:
                line = line[:at] + chance.choice(PIECES) + line[at:]
            case 2:
                line = line[:at] + chance.randbytes(chance.randrange(8)) + line[at + 1 :]
            case 3:
                line = line[at:] + line[:at]
            case 4:
                line += chance.choice(LINES)
            case 5:
                line = line[:at] + line[at:] * 2
            case _:
                depth = chance.choice((3, 100, 2000))
                line = line[:at] + b"[" * depth + line[at:]
    return line.replace(b"\n", b" ")


@tool("Writes `count` mangled lines", READ_ONLY, output=NUMBER, seed=NUMBER, count=NUMBER)
def fuzz(server, request, seed, count):
    server.write(lines(seed, count))
    request.value(seed)


class Fuzzer(Honest, mode="fuzzer"):
    def __init__(self, options):
        super().__init__(options)
        self.tools = {"fuzz": fuzz}

    def line(self, line):
        try:
            super().line(line)
        except (KeyError, TypeError, AttributeError):
            return  # an answer to one of our lines


if __name__ == "__main__":
    Fuzzer({}).main()
