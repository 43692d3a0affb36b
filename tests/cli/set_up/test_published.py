"""Every real server of a registry on loopback, through the whole of `multitap add`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from multitap.published.packages import servers
from multitap.published.server_json import read_server
from tests.published.real_servers import ALL, described, entry, registry
from tests.published.test_bundled_catalog import NAMES, sample

PROGRAM = Path(sys.executable).with_name("multitap")
PATIENCE = 380
PATH = os.pathsep.join([str(PROGRAM.parent), os.environ["PATH"]])
"""Has `uvx` in any case, which comes with the tools of developers."""
OWN = {("database", "url"): "sqlite:///x.db"}
"""A file in the folder of its sandbox: of others, it has only those that were named as paths."""
CLOSED = {
    "word": "its program is not called like its package, which no server.json can say",
}
PASSED_ON = ("PIP_", "UV_", "NPM_CONFIG_", "SSL_", "REQUESTS_", "NODE_", "HTTP", "NO_PROXY")
"""Where this machine has programs and packages from."""


def which(program):
    return shutil.which(program, path=PATH)


@pytest.fixture(scope="module")
def address():
    with registry([entry(one) for one in ALL]) as (url, _):
        yield url


@pytest.mark.wide
@pytest.mark.network
@pytest.mark.timeout(PATIENCE + 20)
@pytest.mark.parametrize("name", NAMES)
def test_a_server_of_the_registry_is_added_and_works(name, address, tmp_path, request):
    server = servers()[name]
    if name in CLOSED:
        request.applymarker(pytest.mark.xfail(reason=CLOSED[name], strict=True))
    draft = read_server(described(server)).best(which)
    if which(draft.fields["command"]) is None:
        pytest.skip(f"{draft.fields['command']} is not installed")
    work = tmp_path / "work"
    work.mkdir()
    subprocess.run(["git", "init", "-q", work], check=True)  # one of them wants a repository
    values = {
        one.description: OWN.get((name, one.name)) or sample(server, one, work)
        for one in server.inputs
    }
    given = [
        word for one in draft.inputs for word in (f"--{one.name}", values[one.description]) if word
    ]
    env = {key: text for key, text in os.environ.items() if key.upper().startswith(PASSED_ON)}

    ended = subprocess.run(
        [
            *(PROGRAM, "add", f"io.github.someone/{name}", *given),
            *("--yes", "--json", "--timeout", "5m"),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=work,
        env={
            **env,
            "PATH": PATH,
            "HOME": str(tmp_path),
            "MULTITAP_REGISTRY": address,
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        },
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )

    assert ended.returncode == 0, ended.stderr[-3000:]
    (added,) = json.loads(ended.stdout)
    assert len(added["tools"]) > 0
    secrets = [one for one in draft.inputs if one.secret]
    assert Path(added["file"]).read_text().count("${auth:") >= len(secrets)
