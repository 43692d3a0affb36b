"""The suite's scenarios for authorization servers, on ours."""

import re
import socket
import subprocess

import anyio
import pytest

from tests.authorization.organisation import Browser, sign_ins

pytestmark = [pytest.mark.slow, pytest.mark.network]

PAGE = re.compile(r"^(http://\S+/authorize\?\S+)$", re.MULTILINE)


async def test_our_authorization_server_conforms(kit, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with sign_ins(tmp_path) as front, Browser() as browser:
        client_id = await front.register("http://127.0.0.1/callback")
        arguments = ("--url", front.url, "--client-id", client_id, "--port", str(port))
        command = [*kit.suite, "authorization", *arguments, "--resource", f"{front.url}/mcp"]
        async with await anyio.open_process(command, stderr=subprocess.STDOUT) as suite:
            said = ""
            async for chunk in suite.stdout:
                said += chunk.decode()
                if (page := PAGE.search(said)) is not None:
                    break
            back = await front.sign_in(browser, page[1])
            await browser.open(back.headers["location"])
            async for chunk in suite.stdout:
                said += chunk.decode()

    assert suite.returncode == 0, said
    assert "Total: 3 passed, 0 failed" in said, said
