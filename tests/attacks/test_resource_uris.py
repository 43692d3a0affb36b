"""Addresses of resources that want to leave the server they belong to (CVE-2026-32871)."""

import base64

import pytest

from multitap import Settings
from tests.gateway.hostile.raw import dial, stateless
from tests.gateway.talking import gate, zoo

TRAVERSALS = (
    "file:///etc/passwd",
    "/etc/passwd",
    "../../etc/passwd",
    "zoo://../../../../etc/passwd",
    "zoo://notes/..%2f..%2f..%2fetc%2fpasswd",
    "zoo://%2e%2e/%2e%2e/etc/passwd",
    "zoo://notes/\x00/etc/passwd",
    "zoo:///etc/passwd",
    "zoo://other/~/file:///etc/passwd",
    "http://127.0.0.1:1/latest/meta-data",
    "http://169.254.169.254/latest/meta-data",
    "multitap://zoo/file:///etc/passwd",
    "\\\\host\\share",
    "",
)


@pytest.mark.parametrize("uri", TRAVERSALS)
async def test_an_address_leads_to_no_file_and_no_page_of_ours(uri, tmp_path):
    settings = Settings(servers={"zoo": zoo(), "other": zoo()}, state_dir=tmp_path)
    async with gate(settings) as opened:
        port = int(opened.url.rpartition(":")[2].partition("/")[0])
        async with dial(port) as line:
            asked = stateless(1, "resources/read", uri=uri, headers={"mcp_name": _as_header(uri)})
            answer = (await line.asks(asked)).message

    assert "root:" not in str(answer)
    assert "error" in answer, answer


def _as_header(uri):
    return f"=?base64?{base64.b64encode(uri.encode()).decode()}?="
