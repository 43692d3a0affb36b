"""A server that looks around in what it was given: environment and open files."""

import json
import os

from multitap import Settings, open_hub
from tests.gateway.talking import zoo

SECRETS = {
    "OPENAI_API_KEY": "sk-leaked",
    "AWS_SECRET_ACCESS_KEY": "leaked",
    "GITHUB_TOKEN": "leaked",
    "SSH_AUTH_SOCK": "/tmp/leaked",
    "MULTITAP_CONFIG": "/tmp/leaked",
    "HTTPS_PROXY": "http://user:leaked@proxy.example",
    "PYTHONPATH": "/tmp/leaked",
    "LD_PRELOAD_NOT": "leaked",
}


async def test_a_server_gets_no_variable_that_its_entry_does_not_name(tmp_path, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    server = zoo("env_dump", env={"WANTED": "yes"})
    async with open_hub(Settings(servers={"zoo": server}, state_dir=tmp_path)) as hub:
        seen = (await hub.call("zoo_fault")).text

    assert "leaked" not in seen
    assert '"WANTED"' in seen


async def test_a_server_gets_no_open_file_of_ours(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("leaked")
    handle = os.open(secret, os.O_RDONLY)
    os.set_inheritable(handle, True)  # as a careless library does
    try:
        server = zoo("fd_dump")
        async with open_hub(Settings(servers={"zoo": server}, state_dir=tmp_path)) as hub:
            seen = (await hub.call("zoo_fault")).text
    finally:
        os.close(handle)

    assert "secret" not in seen
    assert {int(number) for number in json.loads(seen)} <= {0, 1, 2}
