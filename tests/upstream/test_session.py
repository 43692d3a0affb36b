"""What a server itself asks of us."""

import pytest
from msgspec import Raw

from multitap.redaction import Redactor
from multitap.upstream.questions import Handlers
from multitap.upstream.session import _FromServer, _strip_tasks
from multitap.wire.jsonrpc import INVALID_PARAMS, RpcError


@pytest.mark.parametrize("params", [b'{"temperature":1e999}', b'{"a":"\\ud800"}', b"[" * 100_000])
async def test_a_question_that_cannot_be_read_is_refused_as_such(params):
    inbound = _FromServer("zoo", Handlers(), lambda *_: None, lambda: None, Redactor())

    with pytest.raises(RpcError) as caught:
        await inbound.request("sampling/createMessage", Raw(params), None)

    assert caught.value.code == INVALID_PARAMS


@pytest.mark.parametrize(
    "capabilities",
    [b'["extensions"]', b'{"extensions":1e999}', b'{"extensions":"\\ud800"}', b'"extensions"'],
)
def test_capabilities_that_cannot_be_read_raise_nothing(capabilities):
    assert len(_strip_tasks(Raw(capabilities)))
