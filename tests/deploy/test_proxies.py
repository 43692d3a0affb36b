"""nginx and HAProxy in front of a gateway, by the files of `deploy/`."""

import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from multitap import Settings
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.http import HttpFront, serve_http
from multitap.gateway.fronts.tokens import Token
from multitap.gateway.gateway import open_gateway
from multitap.http.server.server import bind
from multitap.hub.hub import open_hub
from tests.gateway.hostile.raw import dial, hello, http, stateless
from tests.gateway.talking import zoo
from tests.waiting import until_told

PROXIES = Path(__file__).parents[2] / "deploy" / "proxies"
TOKEN = Token(b"a-secret-of-some-length", "ann")
BEARER = {"authorization": f"Bearer {TOKEN.secret.decode()}"}
COMMANDS = {
    "nginx": ("nginx.conf", ["nginx", "-g", "daemon off;", "-e", "stderr", "-c"]),
    "haproxy": ("haproxy.cfg", ["haproxy", "-db", "-f"]),
}

pytestmark = pytest.mark.slow


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def running(name, folder, gateway_port):
    """The proxy by its file, with other ports; its value is the port that it listens on."""
    file, command = COMMANDS[name]
    port = free_port()
    text = (PROXIES / file).read_text()
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    text = text.replace("127.0.0.1:3000", f"127.0.0.1:{gateway_port}")
    text = text.replace("/tmp/multitap-nginx.pid", str(folder / "pid"))
    config = folder / file
    config.write_text(text)
    with subprocess.Popen([*command, str(config)], cwd=folder) as process:
        try:
            yield port
        finally:
            process.terminate()


@pytest.mark.parametrize("name", COMMANDS)
async def test_clients_of_a_proxy_are_told_apart_and_served(name, tmp_path):
    if shutil.which(name) is None:
        pytest.skip(f"needs Debian's package {name}")
    settings = Settings(servers={"z": zoo()}, state_dir=tmp_path / "state")
    access = Access("127.0.0.1", (TOKEN,), proxies=("127.0.0.1",))
    listener = bind("127.0.0.1", 0)
    async with open_gateway(lambda handlers: open_hub(settings, handlers=handlers)) as gateway:
        await gateway.hub.settled()
        front = HttpFront(gateway, access)
        proxies = access.proxies if name == "haproxy" else None
        async with serve_http(front, listener, proxies=proxies):
            with running(name, tmp_path, listener.getsockname()[1]) as port:

                async def answers():
                    try:
                        async with dial(port) as line:
                            response = await line.asks(http("GET", "/ready"))
                            return response if response.status == 200 else None
                    except (OSError, EOFError):
                        return None

                await until_told(answers)
                async with dial(port) as line:
                    refused = await line.asks(http(body=hello()))
                async with dial(port) as line:
                    opened = await line.asks(http(body=hello(), **BEARER))
                    call = {"name": "z_echo", "arguments": {"text": "hi"}}
                    called = await line.asks(stateless(1, "tools/call", headers=BEARER, **call))

    assert refused.status == 401
    assert opened.status == 200
    assert called.text == "hi"
