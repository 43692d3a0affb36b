"""What the relay of a client's pipes does, with a gateway that the test plays."""

import json
import os
import socket
import threading
from contextlib import contextmanager

import pytest

from multitap.control.joining import MOVED, STOPPED, Joined, JoinReply, Needs, is_newer
from multitap.control.relay import MAX_LINE, PipeRelay
from multitap.errors import MultitapError
from tests.waiting import PATIENCE, wait_for

INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class End:
    """One end of a connection, with whole messages."""

    def __init__(self, connection):
        self.connection = connection
        self.connection.settimeout(PATIENCE)
        self._file = connection.makefile("rb")

    def write(self, *messages):
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            # as the gateway writes them
            self.connection.sendall(line.replace(b": ", b":").replace(b", ", b",") + b"\n")

    def read(self, count=1):
        lines = [json.loads(self._file.readline() or b"null") for _ in range(count)]
        return lines[0] if count == 1 else lines

    def close(self):
        self._file.close()
        self.connection.close()


class Wiring:
    """A relay between a client and gateways, all of which are played."""

    def __init__(self):
        self.gateways = []
        self._connections = []
        self.client, theirs = (End(one) for one in socket.socketpair())
        self._theirs = theirs
        self.failure = None
        relay = PipeRelay(
            theirs.connection.fileno(), os.dup(theirs.connection.fileno()), self.join(), self.join
        )
        theirs.connection.setblocking(False)
        self._relay = relay
        self.joined = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def join(self):
        ours, theirs = socket.socketpair()
        self.gateways.append(End(ours))
        self._connections.append(theirs)
        if len(self.gateways) > 1:
            self.joined.release()
        return Joined(theirs, JoinReply(version="1", pid=1))

    def next(self):
        """The gateway that was joined after the last one."""
        assert self.joined.acquire(timeout=PATIENCE)
        return self.gateways[-1]

    def _run(self):
        try:
            self._relay.run()
        except (MultitapError, OSError) as exc:
            self.failure = exc

    def close(self):
        self.client.close()
        for gateway in self.gateways:
            gateway.close()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        for gateway in self.gateways:  # it may have joined another one meanwhile
            gateway.close()
        os.close(self._relay._client.fd)
        self._theirs.close()
        for connection in self._connections:
            connection.close()


@contextmanager
def wired():
    wiring = Wiring()
    try:
        yield wiring
    finally:
        wiring.close()


def call(number, method="tools/call", **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def answer(number, **result):
    return {"jsonrpc": "2.0", "id": number, "result": result}


def shake_hands(wiring):
    gateway = wiring.gateways[0]
    wiring.client.write(INITIALIZE, INITIALIZED)
    assert [message["method"] for message in gateway.read(2)] == [
        "initialize",
        "notifications/initialized",
    ]
    gateway.write(answer(1))
    assert wiring.client.read()["id"] == 1
    return gateway


def test_the_next_gateway_gets_the_handshake_the_level_and_the_subscriptions():
    with wired() as wiring:
        gateway, client = shake_hands(wiring), wiring.client
        asked = [
            call(2, "logging/setLevel", level="error"),
            call(3, "resources/subscribe", uri="x://a"),
            call(4, "resources/subscribe", uri="x://b"),
            call(5, "resources/unsubscribe", uri="x://a"),
        ]
        client.write(*asked)
        for message in gateway.read(4):
            gateway.write(answer(message["id"]))
        client.read(4)

        gateway.close()
        again = wiring.next()

        first, initialized, level, subscription = again.read(4)
        assert first["method"] == "initialize"
        assert initialized == INITIALIZED
        assert level["params"] == {"level": "error"}
        assert subscription["params"] == {"uri": "x://b"}
        again.write(*(answer(message["id"]) for message in (first, level, subscription)))
        changed = [message["method"] for message in client.read(3)]
        assert changed == [
            f"notifications/{kind}/list_changed" for kind in ("tools", "resources", "prompts")
        ]
        client.write(call(9))
        assert again.read()["id"] == 9
        again.write(answer(9, text="later"))
        assert client.read() == answer(9, text="later")  # the repeated answers are not passed on


def test_requests_of_a_dead_gateway_are_answered_and_those_that_listen_go_on():
    with wired() as wiring:
        gateway, client = shake_hands(wiring), wiring.client
        client.write(call("a"), call("l", "subscriptions/listen"), call(7, "tools/list"))
        gateway.read(3)
        gateway.write(answer(7))
        client.read()

        gateway.close()

        error = client.read()
        assert error["id"] == "a"
        assert "may have run" in error["error"]["message"]
        again = wiring.next()
        assert again.read()["id"] == "l"


def test_a_gateway_that_is_replaced_finishes_what_it_has():
    with wired() as wiring:
        gateway, client = shake_hands(wiring), wiring.client
        client.write(call(2))
        gateway.read()

        gateway.write(MOVED)
        again = wiring.next()
        client.write(call(3))

        assert again.read(3)[2]["id"] == 3
        again.write(answer(3, from_="new"))
        gateway.write(answer(2, from_="old"))
        replies = [message for message in client.read(5) if "id" in message]
        assert {reply["id"]: reply["result"]["from_"] for reply in replies} == {2: "old", 3: "new"}
        assert gateway.read() is None  # closed, now that it has nothing more to do


def test_cancellations_and_answers_go_to_the_gateway_that_they_concern():
    with wired() as wiring:
        gateway, client = shake_hands(wiring), wiring.client
        client.write(call(2))
        gateway.read()
        gateway.write(call(77, "elicitation/create"))
        client.read()
        gateway.write(MOVED)
        again = wiring.next()
        again.read(2)

        client.write(answer(77, action="accept"))
        client.write(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
        )

        assert gateway.read() == answer(77, action="accept")
        assert gateway.read()["method"] == "notifications/cancelled"


def test_a_cancelled_request_does_not_go_to_a_gateway_that_does_not_read_yet():
    def cancellation(number):
        return {"method": "notifications/cancelled", "params": {"requestId": number}}

    with wired() as wiring:
        gateway, seen = wiring.gateways[0], []
        numbers = range(2, 14)
        wiring.client.write(*(call(number, text="x" * 250_000) for number in numbers))
        wiring.client.write(*map(cancellation, numbers), call(99))
        wait_for(lambda: b"99" in wiring._relay._current.pending)
        while not seen or seen[-1].get("id") != 99:
            seen.append(gateway.read())

    called = [message["id"] for message in seen[:-1] if "id" in message]
    cancelled = [message["params"]["requestId"] for message in seen if "id" not in message]
    assert called == cancelled
    assert len(called) < 4  # what the connection took, and what was begun


def test_a_stopped_gateway_is_joined_again_with_the_next_message_only():
    with wired() as wiring:
        gateway, client = shake_hands(wiring), wiring.client

        gateway.write(STOPPED)
        gateway.close()

        assert not wiring.joined.acquire(timeout=0.2)
        client.write(call(2))
        assert [message["method"] for message in wiring.next().read(3)][2] == "tools/call"


def test_gateways_that_die_at_once_are_given_up():
    with wired() as wiring:
        gateway = shake_hands(wiring)
        while wiring.thread.is_alive() and gateway is not None:
            gateway.close()
            gateway = wiring.gateways[-1] if wiring.joined.acquire(timeout=1) else None

        wiring.thread.join(PATIENCE)

        assert "lost" in str(wiring.failure)


def test_a_message_over_the_limit_is_refused_and_the_next_one_passes():
    with wired() as wiring:
        gateway, client = shake_hands(wiring), wiring.client
        size = MAX_LINE // 64 + 1
        sender = threading.Thread(
            target=lambda: [client.connection.sendall(b"x" * size) for _ in range(65)]
        )
        sender.start()
        error = client.read()
        sender.join()

        client.connection.sendall(b"\n")
        client.write(call(2))

        assert (error["id"], error["error"]["code"]) == (None, -32600)
        assert gateway.read()["id"] == 2


def test_the_last_answers_come_after_the_end_of_input():
    with wired() as wiring:
        gateway, client = shake_hands(wiring), wiring.client
        client.write(call(2))
        gateway.read()

        client.connection.shutdown(socket.SHUT_WR)

        assert gateway.read() is None
        gateway.write(answer(2))
        gateway.close()
        assert client.read() == answer(2)
        wiring.thread.join(PATIENCE)
        assert not wiring.thread.is_alive()


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("0.2.0", "0.1.9"),
        ("0.10.0", "0.9.0"),
        ("1.0", "1.0rc1"),
        ("1.0rc1", "1.0b2"),
        ("0.1.0", "0.1.0.dev0"),
        ("1.0.post1", "1.0"),
    ],
)
def test_versions_are_compared_by_their_order(newer, older):
    assert is_newer(newer, older)
    assert not is_newer(older, newer)
    assert not is_newer(newer, newer)


def test_only_variables_that_are_needed_are_sent():
    env = {"KEY": "1", "OTHER": "2", "LC_ALL": "C"}

    assert Needs(("KEY", "ABSENT"), ("LC_",)).pick(env) == {"KEY": "1", "LC_ALL": "C"}
    assert Needs(()).pick(env) == {}
