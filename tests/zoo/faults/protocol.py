"""Servers whose messages are no proper JSON-RPC, or answer the wrong question."""

import json

from tests.zoo.honest import INTERNAL, Honest
from tests.zoo.pipes import STDOUT

FORGED = {"content": [{"type": "text", "text": "FORGED"}], "structuredContent": {"result": -1}}
LINE_SEPARATORS = "one\u2028two\u2029three\x85four\x7ffive"


class Spoiled(Honest):
    """Answers `fault` with bytes of its own making."""

    def fault(self, request):
        self.forget(request)
        self.write(self.spoil(request, self.envelope(request, _text("no fault"))))

    def spoil(self, request, envelope):
        raise NotImplementedError


def _text(text):
    return {"content": [{"type": "text", "text": text}]}


class BatchArray(Spoiled, mode="batch_array"):
    def spoil(self, _request, envelope):
        return self.encode([envelope]) + b"\n"


class TwoOnALine(Spoiled, mode="two_on_a_line"):
    def spoil(self, _request, envelope):
        notification = {"jsonrpc": "2.0", "method": "notifications/zoo", "params": {}}
        return self.encode(envelope) + self.encode(notification) + b"\n"


class PrettyJson(Spoiled, mode="pretty_json"):
    def spoil(self, _request, envelope):
        return json.dumps(envelope, indent=2).encode() + b"\n"


class LoneSurrogate(Spoiled, mode="lone_surrogate"):
    def spoil(self, _request, envelope):
        return self.encode(envelope).replace(b"no fault", rb"half \ud800 pair") + b"\n"


class BigInt(Spoiled, mode="big_int"):
    def spoil(self, _request, envelope):
        envelope["result"]["structuredContent"] = {"result": "DIGITS"}
        return self.encode(envelope).replace(b'"DIGITS"', b"9" * 5000) + b"\n"


class DeepJson(Spoiled, mode="deep_json"):
    def spoil(self, _request, envelope):
        depth = self.option("count", 100_000)
        envelope["result"]["structuredContent"] = {"result": "DEEP"}
        deep = b"[" * depth + b"]" * depth
        return self.encode(envelope).replace(b'"DEEP"', deep) + b"\n"


class BadUtf8Answer(Spoiled, mode="bad_utf8_answer"):
    def spoil(self, _request, envelope):
        return self.encode(envelope).replace(b"no fault", b"caf\xe9 \xff\xfe \xc3\x28") + b"\n"


class UnicodeLineSeparators(Spoiled, mode="unicode_line_separators"):
    def spoil(self, _request, envelope):
        return self.encode(envelope).replace(b"no fault", LINE_SEPARATORS.encode()) + b"\n"


class Neither(Spoiled, mode="neither"):
    def spoil(self, request, _envelope):
        return self.encode({"jsonrpc": "2.0", "id": request.id}) + b"\n"


class Both(Spoiled, mode="both"):
    def spoil(self, _request, envelope):
        error = {"code": INTERNAL, "message": "and yet it failed"}
        return self.encode({**envelope, "error": error}) + b"\n"


class ResultWrongType(Spoiled, mode="result_wrong_type"):
    def spoil(self, _request, envelope):
        return self.encode({**envelope, "result": "no fault"}) + b"\n"


class ResultNull(Spoiled, mode="result_null"):
    def spoil(self, _request, envelope):
        return self.encode({**envelope, "result": None}) + b"\n"


class ErrorWrongShape(Spoiled, mode="error_wrong_shape"):
    def spoil(self, request, _envelope):
        return self.encode({"jsonrpc": "2.0", "id": request.id, "error": "boom"}) + b"\n"


class NullIdError(Spoiled, mode="null_id_error"):
    def spoil(self, _request, _envelope):
        error = {"code": -32700, "message": "Parse error"}
        return self.encode({"jsonrpc": "2.0", "id": None, "error": error}) + b"\n"


class IdAsString(Spoiled, mode="id_as_string"):
    """Gives the id back in another type: a number as a string, a string in a list."""

    def spoil(self, request, envelope):
        other = str(request.id) if isinstance(request.id, int) else [request.id]
        return self.encode({**envelope, "id": other}) + b"\n"


class IdAsFloat(Spoiled, mode="id_as_float"):
    """Gives a number back with a fraction; a string, which cannot have one, in capitals."""

    def spoil(self, request, envelope):
        is_number = isinstance(request.id, int)
        other = float(request.id) if is_number else f"{request.id.upper()}.0"
        return self.encode({**envelope, "id": other}) + b"\n"


class MissingJsonrpc(Spoiled, mode="missing_jsonrpc"):
    def spoil(self, request, envelope):
        return self.encode({"id": request.id, "result": envelope["result"]}) + b"\n"


class DuplicateKeys(Spoiled, mode="duplicate_keys"):
    def spoil(self, _request, envelope):
        forged = self.encode(FORGED)
        return b'{"result":' + forged + b"," + self.encode(envelope)[1:] + b"\n"


class BadContent(Honest, mode="bad_content"):
    def fault(self, request):
        good = {"type": "text", "text": "the good block"}
        odd = [None, 7, {}, {"type": "hologram"}, {"type": "text"}, {"type": "image", "data": "!"}]
        request.answer({"content": [*odd, good], "isError": "no", "structuredContent": [1]})


class EmptyResult(Honest, mode="empty_result"):
    def fault(self, request):
        request.answer({})


class DupAnswer(Honest, mode="dup_answer"):
    """Answers every call twice, the second time with a lie."""

    def answer(self, request, result):
        super().answer(request, result)
        if request.method == "tools/call":
            super().answer(request, FORGED)


class UnknownIdAnswer(Honest, mode="unknown_id_answer"):
    """Before every right answer, the same answer to questions that nobody asked."""

    def answer(self, request, result):
        if request.method == "tools/call":
            for other in (f"{request.id}x", -1, 2**70, 0.5, True, None, [request.id], {}):
                self.say({"jsonrpc": "2.0", "id": other, "result": FORGED})
        super().answer(request, result)


class PreAnswer(Honest, mode="pre_answer"):
    """Answers what it guesses to be the next ids, before being asked."""

    def ready(self):
        guesses = range(1, self.option("count", 1000) + 1)
        lines = [
            self.encode({"jsonrpc": "2.0", "id": guess, "result": FORGED}) + b"\n"
            for number in guesses
            for guess in (number, str(number))
        ]
        self.write(b"".join(lines))


class Reorder(Honest, mode="reorder"):
    """Gathers the answers to calls for a moment and gives the last one first."""

    held = ()

    def answer(self, request, result):
        if request.method != "tools/call":
            super().answer(request, result)
            return
        if not self.held:
            self.after(self.option("seconds", 0.02), self.release)
        self.held = ((request, result), *self.held)

    def release(self):
        held, self.held = self.held, ()
        for request, result in held:
            super().answer(request, result)


class SameIdRequest(Honest, mode="same_id_request"):
    """In the middle of a call, asks the client something under the call's own id."""

    era = "handshake"

    def fault(self, request):
        self.questions[request.id] = lambda _reply: request.text("no fault")
        self.say({"jsonrpc": "2.0", "id": request.id, "method": "ping"})


class CancelsOurs(Honest, mode="cancels_ours"):
    """Cancels the client's request, which only the client may, and answers it all the same."""

    def fault(self, request):
        self.notify("notifications/cancelled", {"requestId": request.id, "reason": "no"})
        request.later(0.05, request.text, "no fault")


class ExitMidCall(Honest, mode="exit_mid_call"):
    def fault(self, _request):
        self.exit(self.option("code", 7))


class NeverAnswer(Honest, mode="never_answer"):
    def fault(self, request):
        """Leaves the client waiting."""


class LateAnswer(Honest, mode="late_answer"):
    """Answers a call only when the client has given up and said so."""

    def fault(self, request):
        """Waits for the cancellation."""

    def told(self, method, params):
        request = self.requests.get(params.get("requestId"))
        super().told(method, params)
        if request and request.params.get("name") in {"fault", "fault_hinted"}:
            self.answer(request, FORGED)


class BadProgress(Honest, mode="bad_progress"):
    def fault(self, request):
        token = request.meta.get("progressToken")
        for odd in (
            {"progressToken": "nobody's", "progress": 1},
            {"progressToken": token, "progress": 5, "total": 2},
            {"progressToken": token, "progress": 3},
            {"progressToken": token, "progress": "half"},
            {"progressToken": token},
            {"progressToken": [token], "progress": 1},
            {"progressToken": token, "progress": 6, "message": "m" * 100_000},
        ):
            self.notify("notifications/progress", odd)
        request.text("no fault")
        self.notify("notifications/progress", {"progressToken": token, "progress": 7})


class BadNotifications(Honest, mode="bad_notifications"):
    def fault(self, request):
        for method, params in (
            ("notifications/tools/list_changed", 5),
            ("notifications/resources/updated", {}),
            ("notifications/resources/updated", {"uri": 7}),
            ("notifications/message", {"level": "shout"}),
            ("notifications/message", [1, 2]),
            ("notifications/cancelled", {"requestId": {"a": 1}}),
            ("notifications/subscriptions/acknowledged", {"_meta": None}),
            ("", {}),
        ):
            self.say({"jsonrpc": "2.0", "method": method, "params": params})
        self.say({"jsonrpc": "2.0", "method": 7})
        request.text("no fault")


class Framed(Honest):
    """Sends its good messages in a strange frame."""

    before = b""
    after_each = b""

    def start(self):
        self.write(self.before)

    def say(self, message):
        self.write(self.encode(message) + b"\n" + self.after_each)


class Bom(Framed, mode="bom"):
    before = b"\xef\xbb\xbf"


class GarbageBefore(Framed, mode="garbage_before"):
    before = b'Weather server v1.2\n{"level":"info","msg":"listening"}\nWARNING: 3 {unclosed\n'


class GarbageBetween(Framed, mode="garbage_between"):
    after_each = b'DEBUG done\n{"level":"info","msg":"served"}\n[1,2]\n"text"\nnull\n17\n'


class GarbageBinary(Framed, mode="garbage_binary"):
    after_each = bytes(byte for byte in range(256) if byte != 0x0A) * 4 + b"\n"


class ZeroBytes(Framed, mode="zero_bytes"):
    after_each = b"\0" * 4096 + b"\n"


class EmptyLines(Framed, mode="empty_lines"):
    before = b"\n\n\r\n"
    after_each = b"\n  \n\t\n\r\n"


class Crlf(Honest, mode="crlf"):
    def say(self, message):
        self.write(self.encode(message) + b"\r\n")


class PartialWrite(Honest, mode="partial_write"):
    """Writes answers to calls one byte at a time."""

    def write(self, data, to=STDOUT):
        step = 1 if self.was_ready or self.initialized else len(data)
        for start in range(0, len(data), step):
            super().write(data[start : start + step], to)

    def definitions(self):
        few = {"echo", "pid", "fault"}  # a byte at a time, a long list would take seconds
        return [tool for tool in super().definitions() if tool["name"] in few]
