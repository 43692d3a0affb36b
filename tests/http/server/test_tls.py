"""TLS: who is shown which certificate, and what a wrong one says."""

import asyncio
import json
import re
import signal
import ssl
import subprocess
import sys
import urllib.request
from contextlib import asynccontextmanager

import pytest
from cryptography import x509

from multitap.errors import ConfigError
from multitap.http.server.connections import HttpLimits
from multitap.http.server.request import Rejected
from multitap.http.server.server import bind, open_http_server
from multitap.http.server.tls import ServerTls, TlsFiles
from tests.gateway.hostile.raw import Line, http
from tests.http.server.certificates import issue
from tests.waiting import PATIENCE, until_told


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


class Echo:
    """Answers with the body, and whether the connection is secure."""

    def admit(self, head):
        head.keeps_body = True
        return Rejected(401, "no") if head.path == b"/no" else None

    def handle(self, http_request):
        secure = b"secure" if http_request.head.peer.is_secure else b"plain"
        http_request.respond(200, (http_request.body, secure))


@asynccontextmanager
async def serving(tls):
    limits = HttpLimits(linger=0.2)
    async with open_http_server(Echo(), bind("127.0.0.1", 0), limits, tls=tls) as server:
        assert server.url.startswith("https://")
        yield int(server.url.rpartition(":")[2])


@asynccontextmanager
async def secure_dial(port, authority, client=None):
    context = ssl.create_default_context(cafile=authority.cert)
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=2**24)
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


def serial_of(line):
    der = line._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(der).serial_number


@pytest.mark.parametrize("size", [0, 10, 5_000_000])
async def test_requests_are_answered_over_tls(tmp_path, size):
    own = issue(tmp_path, "own")
    tls = ServerTls(TlsFiles(own.cert, own.key))
    async with serving(tls) as port, secure_dial(port, own) as line:
        for _ in range(2):
            response = await line.asks(http(body=b"x" * size))

            assert (response.status, response.body) == (200, b"x" * size + b"secure")


async def test_a_rejected_client_reads_why_and_is_closed(tmp_path):
    own = issue(tmp_path, "own")
    tls = ServerTls(TlsFiles(own.cert, own.key))
    async with serving(tls) as port, secure_dial(port, own) as line:
        response = await line.asks(http("GET", "/no"))

        assert (response.status, response.body) == (401, b"no")
        assert await line.closed() == b""


async def test_a_client_without_tls_gets_nothing(tmp_path):
    own = issue(tmp_path, "own")
    async with serving(ServerTls(TlsFiles(own.cert, own.key))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(http())

        assert b"HTTP" not in await Line(reader, writer).closed()
        writer.transport.abort()


async def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(tmp_path, caplog):
    ca = issue(tmp_path, "ca")
    old = issue(tmp_path, "site", ca)
    async with serving(ServerTls(TlsFiles(old.cert, old.key))) as port:

        async def shown():
            async with secure_dial(port, ca) as line:
                return serial_of(line)

        assert await shown() == old.serial
        new = issue(tmp_path, "site", ca)

        async def is_new():
            return await shown() == new.serial

        await until_told(is_new)
        new.cert.write_text("broken")

        async def is_reported():
            return "the changed certificate is not used" in caplog.text

        await until_told(is_reported)
        assert await shown() == new.serial


async def test_clients_need_a_certificate_of_the_named_authority(tmp_path):
    own, ca, other = (issue(tmp_path, name) for name in ("own", "ca", "other"))
    friend, stranger = issue(tmp_path, "friend", ca), issue(tmp_path, "stranger", other)
    async with serving(ServerTls(TlsFiles(own.cert, own.key, ca.cert))) as port:
        async with secure_dial(port, own, friend) as line:
            assert (await line.asks(http())).status == 200
        for refused in (None, stranger):
            # in TLS 1.3, a client learns of its refusal when it reads
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                async with secure_dial(port, own, refused) as line:
                    await line.asks(http())


def test_files_that_cannot_be_used_are_named(tmp_path):
    one, two = issue(tmp_path, "one"), issue(tmp_path, "two")
    locked = issue(tmp_path, "locked", password=b"secret")
    text = tmp_path / "text"
    text.write_text("not a certificate")
    cases = [
        (TlsFiles(tmp_path / "none"), "none cannot be used: No such file"),
        (TlsFiles(one.cert, two.key), "key values mismatch"),
        (TlsFiles(one.cert), "one.pem cannot be used"),
        (TlsFiles(text), "text cannot be used"),
        (TlsFiles(locked.cert, locked.key), "cannot be used"),
        (TlsFiles(one.cert, one.key, text), "the authorities in .*text cannot be used"),
        (TlsFiles(one.cert, one.key, tmp_path / "none"), "none cannot be used: No such file"),
    ]
    for files, message in cases:
        with pytest.raises(ConfigError, match=message):
            ServerTls(files)


def test_a_gateway_serves_over_tls(tmp_path):
    own = issue(tmp_path, "own")
    serve = ["serve", "--demo", "--http", "127.0.0.1:0", "--cert", own.cert, "--key", own.key]
    with subprocess.Popen(
        [sys.executable, "-m", "multitap", *serve],
        stderr=subprocess.PIPE,
        text=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    ) as gateway:
        try:
            lines = (re.search(r"https://127.0.0.1:\d+", line) for line in gateway.stderr)
            url = next(match for match in lines if match)[0]
            context = ssl.create_default_context(cafile=own.cert)
            with urllib.request.urlopen(
                f"{url}/health", context=context, timeout=PATIENCE
            ) as response:
                health = json.load(response)
            gateway.send_signal(signal.SIGTERM)
            gateway.communicate()
        finally:
            gateway.kill()

    assert health["servers"] == 3
    assert gateway.returncode == 0


@pytest.mark.parametrize("option", ["--key", "--client-ca"])
def test_a_gateway_needs_a_certificate_for_tls(tmp_path, option):
    own = issue(tmp_path, "own")
    ended = subprocess.run(
        [sys.executable, "-m", "multitap", "serve", "--demo", "--http", "0", option, own.key],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )

    assert ended.stderr == "error: TLS needs a certificate\nhint: add `--cert FILE`\n"
    assert ended.returncode == 3
