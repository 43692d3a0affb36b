import json
from typing import Any

import pytest

from multitap.faults import (
    AuthRequired,
    RequestFailed,
    SessionLost,
    WrongProtocol,
)
from multitap.wire.streamable.http_status import Refusal, is_passing, meaning
from multitap.wire.wire import RpcError

MINE = 17


def refused(status: int, body: Any = b"", **headers: str) -> Refusal:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Refusal(status, {name.replace("_", "-"): value for name, value in headers.items()}, data)


def rpc(code: int, message: str = "no", request_id: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (refused(400), RpcError),
        (refused(400, rpc(-32602)), RpcError),
        (refused(400, {"error": "not found"}), RpcError),
        (refused(401), AuthRequired),
        (refused(401, rpc(-32001)), AuthRequired),
        (refused(403), AuthRequired),
        (refused(403, rpc(-32001)), RpcError),
        (refused(403, rpc(-32001), WWW_Authenticate="Bearer"), AuthRequired),
        (refused(404), WrongProtocol),
        (refused(404, rpc(-32601, request_id=MINE)), RpcError),
        (refused(405), WrongProtocol),
        (refused(408), RequestFailed),
        (refused(413), RpcError),
        (refused(415), RpcError),
        (refused(429), RequestFailed),
        (refused(500), RequestFailed),
        (refused(500, rpc(-32603)), RpcError),
        (refused(502), RequestFailed),
        (refused(599), RequestFailed),
    ],
)
def test_a_refusal_before_the_handshake(refusal: Refusal, kind: type[Exception]):
    assert type(meaning(refusal, MINE, established=False, in_session=False)) is kind


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        pytest.param(refused(404), SessionLost, id="a bare 404"),
        pytest.param(refused(404, rpc(-32600)), SessionLost, id="the SDK's 404"),
        pytest.param(refused(404, rpc(-32600, request_id=MINE)), SessionLost, id="with our id"),
        pytest.param(refused(404, rpc(-32601, request_id=MINE)), RpcError, id="unknown method"),
        pytest.param(refused(400, rpc(-32000, "No valid session ID")), SessionLost, id="in words"),
        pytest.param(refused(400, rpc(-32602, "session", MINE)), RpcError, id="our own error"),
        pytest.param(refused(405), RequestFailed, id="no such verb"),
    ],
)
def test_a_refusal_within_a_session(refusal: Refusal, kind: type[Exception]):
    fault = meaning(refusal, MINE, established=True, in_session=True)

    assert type(fault) is kind
    if isinstance(fault, SessionLost):
        assert not fault.sent


def test_a_404_without_a_session_is_a_failure():
    fault = meaning(refused(404), MINE, established=True, in_session=False)

    assert type(fault) is RequestFailed


def test_the_words_name_the_status_and_quote_the_page_in_one_line():
    refusal = refused(503, b"<p>\n  Sorry\n</p>", Retry_After="30")

    assert refusal.words == "HTTP 503 Service Unavailable, retry after 30: <p> Sorry </p>"


def test_words_are_printable_whatever_the_server_sends():
    refusal = refused(503, b"\x1b[31m\xff", Retry_After="\udcff")

    refusal.words.encode()
    assert "\x1b" not in refusal.words


def test_an_unknown_status_has_no_name():
    assert refused(599).words == "HTTP 599"


@pytest.mark.parametrize(
    ("status", "passing"), [(400, False), (404, False), (429, True), (500, True)]
)
def test_what_may_pass_is_known(status: int, passing: bool):
    assert is_passing(status) is passing
