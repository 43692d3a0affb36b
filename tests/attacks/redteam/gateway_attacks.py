"""Clients of a gateway, other users of the machine, and peers on the same Redis."""

import json
import re
import socket
from contextlib import ExitStack, contextmanager, suppress
from itertools import count

import tomlkit
from hypothesis import strategies as st

from tests.attacks.redteam.attack import Attack, Breach, Void
from tests.attacks.redteam.machine import open_machine
from tests.cluster.redis_server import PROGRAM, running_redis
from tests.gateway.hostile.raw import hello, http, message, stateless
from tests.waiting import wait_for
from tests.zoo.modes import SERVER

OTHER_USER = 1
CLOSE = {"connection": "close"}
ABLE = {"elicitation": {}}
INITIALIZED = "notifications/initialized"


class Ledger:
    """A server that writes each call down."""

    def __init__(self, machine):
        self.folder = machine.work / "ledger"
        self.folder.mkdir()
        self.server = {
            "command": machine.python,
            "args": ["-I", "-S", str(SERVER), "good"],
            "env": {"ZOO_DIR": str(self.folder)},
        }

    def count(self, nonce):
        """How often it was called with this text."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return sum(f'"{nonce}"' in line for line in lines)


def configure(machine, ledger, **more):
    table = {"servers": {"zoo": ledger.server}, **more}
    return machine.put(".config/multitap/multitap.toml", tomlkit.dumps(table), mode=0o600)


def body_of(answer):
    """The last message in an HTTP response, whether it is JSON or a stream."""
    _, _, body = answer.partition(b"\r\n\r\n")
    found = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    text = found[-1] if found else body[body.find(b"{") : body.rfind(b"}") + 1]
    with suppress(ValueError):
        return json.loads(text)
    return {}


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer else 0


DECISIONS = {"action": "accept", "content": {"decision": "once"}}
"""What a person answers who allows one call."""
TRICKS = (
    "same answer", "same answer", "no state", "made-up state", "state of another", "cut state",
    "only state", "only answers", "made-up answers", "other arguments", "other id", "empty state",
)  # fmt: skip
"""What a client may send after a person allowed one call."""


@st.composite
def _repeating(draw):
    return {
        "before": draw(st.lists(st.sampled_from(TRICKS), max_size=2)),
        "after": draw(st.lists(st.sampled_from(TRICKS), min_size=1, max_size=6)),
        "text": draw(st.text(max_size=12)),
        "allow": draw(st.sampled_from([True, True, True, False])),
    }


@contextmanager
def _repeating_an_answer():
    with ExitStack() as stack:
        machine = stack.enter_context(open_machine())()
        ledger = Ledger(machine)
        configure(machine, ledger, policy=[{"tools": ["echo"], "decision": "ask"}])
        token = machine.run("token", "create", "client").out.split()[-1]
        port, _ = stack.enter_context(machine.serve())
        ask = stack.enter_context(machine.client())
        numbers = count()

        def call(nonce, **members):
            arguments = {"text": nonce, **members.pop("more", {})}
            data = stateless(
                *(members.pop("id", next(numbers)), "tools/call"),
                able=ABLE,
                headers={**CLOSE, "authorization": f"Bearer {token}"},
                name="zoo_echo",
                arguments=arguments,
                **members,
            )
            return body_of(ask(port, data))

        def attempt(case):
            nonce, other = f"n{next(numbers)}", f"o{next(numbers)}"
            asked = call(nonce).get("result", {})
            elsewhere = call(other).get("result", {})
            if "requestState" not in asked:
                raise Void(f"nobody was asked: {asked}")
            answers = dict.fromkeys(asked["inputRequests"], DECISIONS)
            state = asked["requestState"]
            forged = {
                "same answer": {"requestState": state, "inputResponses": answers},
                "no state": {"inputResponses": answers},
                "made-up state": {"requestState": case["text"], "inputResponses": answers},
                "state of another": {
                    "requestState": elsewhere.get("requestState", ""),
                    "inputResponses": answers,
                },
                "cut state": {"requestState": state[:-4], "inputResponses": answers},
                "only state": {"requestState": state},
                "only answers": {"inputResponses": {}},
                "made-up answers": {"inputResponses": {"x": {}}, "requestState": case["text"]},
                "other arguments": {
                    "requestState": state,
                    "inputResponses": answers,
                    "more": {"x": 1},
                },
                "other id": {"requestState": case["text"], "id": case["text"] or 7},
                "empty state": {"requestState": ""},
            }
            allowed = 0
            for trick in case["before"]:
                if trick not in {"same answer", "state of another"}:
                    call(nonce, **forged[trick])
            if ledger.count(nonce):
                raise Breach("it was called before anybody allowed it")
            if case["allow"]:
                call(nonce, **forged["same answer"])
                allowed = 1
            for trick in case["after"]:
                # the same answer, before it was used, is the person's own
                if allowed or trick != "same answer":
                    call(nonce, **forged[trick])
            if ledger.count(nonce) > allowed:
                raise Breach(f"allowed {allowed} times, called {ledger.count(nonce)} times")

        yield attempt


VALUES = st.one_of(
    st.integers(0, 9),
    st.sampled_from(["x", "y" * 50, "z" * 400]),
    st.lists(st.integers(100, 200), max_size=120),
)


@st.composite
def _burying(draw):
    return {
        "names": draw(st.integers(0, 90)),
        "value": draw(VALUES),
        "items": draw(st.sampled_from([0, 0, 49, 50, 51, 70, 300])),
        "depth": draw(st.integers(0, 3)),
    }


@contextmanager
def _burying_an_argument():
    with ExitStack() as stack:
        machine = stack.enter_context(open_machine())()
        ledger = Ledger(machine)
        configure(machine, ledger, policy=[{"tools": ["echo"], "decision": "ask"}])
        port, _ = stack.enter_context(machine.serve())
        ask = stack.enter_context(machine.client())

        def attempt(case):
            arguments = {"text": "x"} | {
                f"a{number}": case["value"] for number in range(case["names"])
            }
            inner = [f"item{number}" for number in range(case["items"])]
            inner.append("harm-in-a-list")
            for _ in range(case["depth"]):
                inner = {"inner": inner}
            arguments |= {"list": inner, "last": "harm-at-the-end"}
            data = stateless(
                *(1, "tools/call"),
                able=ABLE,
                headers=CLOSE,
                name="zoo_echo",
                arguments=arguments,
            )
            asked = body_of(ask(port, data)).get("result", {}).get("inputRequests")
            if not asked:
                raise Void("nobody was asked")
            (question,) = asked.values()
            text = question["params"]["message"]
            for harm in ("harm-in-a-list", "harm-at-the-end"):
                if harm not in text and not re.search(r"\d+ \w*\s?(more|left out)", text):
                    raise Breach(f"a question leaves out {harm!r} and does not say so: {text}")

        yield attempt


@st.composite
def _listening(draw):
    return {
        "options": draw(
            st.sampled_from(
                [[], ["--require-token"], ["--insecure"], ["--workers", "2"], ["--demo"]]
            )
        ),
        "way": draw(st.sampled_from(["GET", "POST"])),
        "env": draw(st.sampled_from([{}, {"FORCE_COLOR": "1"}, {"TERM": "xterm"}, {"DEBUG": "1"}])),
    }


@contextmanager
def _listening_to_the_log():
    with open_machine() as fresh, ExitStack() as stack:
        clients = {}

        def attempt(case):
            machine = fresh()
            ledger = Ledger(machine)
            configure(machine, ledger)
            if machine.user is not None and not clients:
                clients["other"] = stack.enter_context(machine.client(OTHER_USER))
            with machine.serve(*case["options"], **case["env"]) as (port, read):
                wait_text = read()
                if keys := re.findall(r"key=\S+|[?&#]\w+=[\w-]{20,}", wait_text):
                    raise Breach(f"a key of the console is in the log: {keys}")
                if clients:
                    shown = machine.run("console", "--no-open").text
                    _, found, key = shown.strip().partition("key=")
                    if not found:
                        raise Void(f"no key: {shown}")
                    _try_key(clients["other"], port, key.split()[0], case["way"])
                if keys := re.findall(r"key=\S+", read()):
                    raise Breach(f"a key of the console is in the log: {keys}")

        yield attempt


def _try_key(ask, port, key, way):
    if way == "GET":
        answer = ask(port, http("GET", f"/console/enter?key={key}", **CLOSE))
    else:
        answer = ask(
            port,
            http(
                *("POST", "/console/enter", f"key={key}".encode()),
                origin=f"http://127.0.0.1:{port}",
                host=f"127.0.0.1:{port}",
                content_type="application/x-www-form-urlencoded",
                **CLOSE,
            ),
        )
    if b"set-cookie" in answer.lower() or status_of(answer) not in {403, 401}:
        raise Breach(f"another user came in with a key of the console: {answer[:300]!r}")


class Eavesdropper:
    """Somebody who may use the same Redis: keeps what is published, and publishes it again."""

    def __init__(self, port):
        self._port = port
        self._line = socket.create_connection(("127.0.0.1", port), timeout=0.3)
        self._line.sendall(b"PSUBSCRIBE *\r\n")
        self._data = b""

    def hear(self):
        """The channels and messages so far."""
        with suppress(TimeoutError):
            while part := self._line.recv(65536):
                self._data += part
        return _messages(self._data)

    def publish(self, channel, message):
        with socket.create_connection(("127.0.0.1", self._port), timeout=5) as line:
            words = (b"PUBLISH", channel, message)
            parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
            line.sendall(b"*%d\r\n%b" % (len(words), parts))
            line.recv(100)

    def close(self):
        self._line.close()


def _messages(data):
    """The `pmessage`s in what Redis sent: pairs of a channel and a message."""
    found, words, at = [], [], 0
    while (end := data.find(b"\r\n", at)) >= 0:
        line, at = data[at:end], end + 2
        if line.startswith(b"*"):
            words = []
        elif line.startswith(b"$"):
            size = int(line[1:])
            if len(data) < at + size + 2:
                break
            words.append(data[at : at + size])
            at += size + 2
            if len(words) == 4 and words[0] == b"pmessage":
                found.append((words[2], words[3]))
    return found


@st.composite
def _replaying(draw):
    return {
        "times": draw(st.integers(1, 3)),
        "order": draw(st.sampled_from(["as heard", "backwards", "last"])),
        "channel": draw(st.sampled_from(["same", "same", "all others"])),
        "calls": draw(st.integers(1, 3)),
    }


@contextmanager
def _replaying_messages():
    with ExitStack() as stack:
        if PROGRAM is None:
            yield _skip
            return
        # other replicas are not told from each other by their users
        machine = stack.enter_context(open_machine(ordinary=False))()
        ledger = Ledger(machine)
        configure(machine, ledger)
        redis = stack.enter_context(running_redis())
        ports = [
            stack.enter_context(machine.serve("--cluster", redis.url, "--no-console"))[0]
            for _ in range(2)
        ]
        ask = stack.enter_context(machine.client())
        numbers = count()
        stream = stack.enter_context(socket.create_connection(("127.0.0.1", ports[0]), timeout=20))
        stream.sendall(http("GET", "/sse", content_type=None, content_length=None))
        begun = b""
        while (endpoint := re.search(rb"data: (/messages\S+)", begun)) is None:
            begun += stream.recv(65536)
        endpoint = endpoint[1].decode()

        def post(port, said):
            return ask(port, http(path=endpoint, body=said, **CLOSE))

        def call(port, nonce):
            params = {"name": "zoo_echo", "arguments": {"text": nonce}}
            said = message(next(numbers), "tools/call", **params)
            answer = post(port, json.dumps(said).encode())
            if status_of(answer) != 202:
                raise Void(f"it was not accepted: {answer[-300:]!r}")
            wait_for(lambda: ledger.count(nonce))

        post(ports[0], hello())
        post(ports[0], json.dumps({"jsonrpc": "2.0", "method": INITIALIZED}).encode())

        def attempt(case):
            thief = Eavesdropper(redis.port)
            try:
                nonces = [f"n{next(numbers)}" for _ in range(case["calls"])]
                for nonce in nonces:
                    call(ports[1], nonce)
                heard = thief.hear()
                if not heard:
                    raise Void("nothing was published")
                _publish_again(thief, heard, case)
                # once this one has arrived, those before it have been looked at
                call(ports[1], f"fence{next(numbers)}")
            finally:
                thief.close()
            for nonce in nonces:
                if (times := ledger.count(nonce)) > 1:
                    raise Breach(f"one call ran {times} times after its messages were replayed")

        yield attempt


def _publish_again(thief, heard, case):
    order = {"as heard": heard, "backwards": heard[::-1], "last": heard[-2:]}[case["order"]]
    channels = [*{channel for channel, _ in heard}]
    for _ in range(case["times"]):
        for channel, sealed in order:
            targets = [channel] if case["channel"] == "same" else channels
            for target in targets:
                thief.publish(target, sealed)


def _skip(_case):
    raise Void("there is no redis-server")


ATTACKS = (
    Attack(
        "a key of the console is in a log, or works for others",
        _listening(),
        _listening_to_the_log,
        2,
    ),
    Attack("an answer is used more than once", _repeating(), _repeating_an_answer, 15),
    Attack("a question leaves something out", _burying(), _burying_an_argument, 20),
    Attack("messages in Redis are replayed", _replaying(), _replaying_messages, 5),
)
