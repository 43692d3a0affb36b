"""The image of `deploy/Dockerfile`, built by buildah on a plain Debian."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.waiting import until_told

ROOT = Path(__file__).parents[2]
TOKEN = "a-secret-of-some-length"
CONFIG = """
[servers.calc]
command = "/opt/multitap/bin/python"
args = ["-m", "multitap.demo.servers.calculator"]
"""
# an index behind a proxy, or folders of packages: the image of a test has what this machine has
PIP = Path.home() / ".config" / "pip" / "pip.conf"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BASE = f"""
FROM scratch
ADD base.tar /
COPY certificates {CERTIFICATES}
COPY pip.conf /etc/pip.conf
ENV PIP_CERT={CERTIFICATES}
"""

pytestmark = [
    pytest.mark.wide,
    pytest.mark.network,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "debootstrap"))),
        reason="needs root, buildah and debootstrap",
    ),
]


def run(*words, **options):
    subprocess.run([str(word) for word in words], check=True, **options)


@pytest.fixture
def buildah(tmp_path):
    """The command, with a store of its own that goes with the test."""
    store = ("--root", tmp_path / "store", "--runroot", tmp_path / "run")
    words = ("buildah", "--storage-driver", "vfs", *store)
    yield words
    run(*words, "rm", "--all")
    run(*words, "rmi", "--all", "--force")


@pytest.fixture
def debian(buildah, tmp_path, pytestconfig):
    """The name of an image of Debian with Python; what it is made of is downloaded once."""
    base = pytestconfig.cache.mkdir("debian") / "base.tar"
    if not base.exists():
        packages = "--include=python3,python3-venv,ca-certificates"
        run("debootstrap", "--variant=minbase", packages, "stable", tmp_path / "base")
        run("tar", "-C", tmp_path / "base", "-cf", base.with_suffix(".part"), ".")
        base.with_suffix(".part").rename(base)
    context = tmp_path / "context"
    context.mkdir()
    os.link(base, context / "base.tar")
    shutil.copy(CERTIFICATES, context / "certificates")
    (context / "pip.conf").write_text(PIP.read_text() if PIP.exists() else "")
    (context / "Dockerfile").write_text(BASE)
    run(*buildah, "bud", "--isolation", "chroot", "-t", "debian", context)
    return "localhost/debian"


@contextmanager
def serving(buildah, image, folder):
    """A gateway in the image, by its own command on another port, with secrets as Kubernetes mounts
    them; yields its address and a function that runs a command beside it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (folder / "multitap.toml").write_text(CONFIG)
    tokens = folder / "tokens"
    tokens.write_text(f"ann={TOKEN}\n")
    os.chown(tokens, 0, 10001)
    tokens.chmod(0o440)
    made = [*buildah, "from", image]
    name = subprocess.run(list(map(str, made)), check=True, capture_output=True, text=True)
    mounts = (
        *("--volume", f"{folder}/multitap.toml:/etc/multitap/multitap.toml:ro"),
        *("--volume", f"{tokens}:/run/secrets/multitap-tokens:ro"),
    )
    words = (*buildah, "run", "--isolation", "chroot", *mounts, name.stdout.strip(), "--")
    command = (
        "multitap",
        "serve",
        "--http",
        address,
        "--token-file",
        "/run/secrets/multitap-tokens",
    )
    with subprocess.Popen([str(word) for word in (*words, *command)]) as process:
        try:
            yield address, lambda *more: run(*words, *more, stdout=subprocess.DEVNULL)
        finally:
            process.terminate()


async def test_the_image_is_built_and_serves_as_an_ordinary_user(buildah, debian, tmp_path):
    folders = [
        word for word in ("/opt/wheels", "/opt/pypi", "/opt/pypi-more") if Path(word).exists()
    ]
    volumes = [word for folder in folders for word in ("--volume", f"{folder}:{folder}:ro")]
    build = ("bud", "--isolation", "chroot", "--format", "docker", *volumes)
    chosen = ("--build-arg", f"PYTHON_IMAGE={debian}", "-t", "multitap")
    run(*buildah, *build, *chosen, "-f", ROOT / "deploy" / "Dockerfile", ROOT, stdout=sys.stderr)

    with serving(buildah, "localhost/multitap", tmp_path) as (address, inside):
        async with aiohttp.ClientSession(f"http://{address}") as client:

            async def answers(path, **headers):
                try:
                    async with client.get(path, headers=headers) as response:
                        return await response.json() if response.status == 200 else None
                except aiohttp.ClientConnectionError:
                    return None

            assert await until_told(lambda: answers("/ready")) == {"ready": True}
            health = await answers("/health", authorization=f"Bearer {TOKEN}")
            assert health == {"status": "ok", "servers": 1, "connected": 1}
            async with client.post("/mcp", json={}) as refused:
                assert refused.status == 401
        inside("sh", "-c", 'test "$(id -u)" = 10001')
        inside("multitap", "stats", "--json")  # what HEALTHCHECK runs
