"""The catalog that comes with Multitap."""

import os
import re
import shutil

import anyio
import pytest

from multitap import Settings, StdioServer, open_hub
from multitap.config.edit.drafts import fill
from multitap.published.packages import FILE, servers

NAMES = [*servers()]
SAMPLES = {
    "root": "{here}",
    "repository": "{here}",
    "connection": "mongodb://127.0.0.1:1/x",
    "url": "http://127.0.0.1:1",
    "api-url": "http://127.0.0.1:1/api/v4",
    "jira-url": "http://127.0.0.1:1",
    "uri": "bolt://127.0.0.1:1",
    "host": "127.0.0.1",
    "commands": "ls",
    "folder": "{here}",
    "file": "{here}/memory.json",
}
SPECIAL = {
    ("postgres", "url"): "postgresql://127.0.0.1:1/x",
    ("database", "url"): "sqlite:///{here}/x.db",
    ("redis", "url"): "redis://127.0.0.1:1",
    ("minimax", "host"): "http://127.0.0.1:1",
    ("mapbox", "token"): "a.b.c",
}


def test_there_are_at_least_forty_servers():
    assert len(NAMES) >= 40


@pytest.mark.parametrize("name", NAMES)
def test_each_draft_is_complete(name):
    server = servers()[name]
    draft = server.draft()
    text = FILE.read_text()

    used = set(re.findall(r"\$\{input:([^}]+)\}", repr(draft.fields)))
    assert used == {one.name for one in draft.inputs}
    assert server.package.check().version
    assert draft.fields["command"] in {"npx", "uvx"}
    assert server.tools > 0
    assert not server.description.endswith(".")
    assert f"[{name}]" in text


def test_a_folder_is_written_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    fields = fill(servers()["filesystem"].draft(), {"root": (".", "~/x", "${HOME}/y")})

    assert fields["args"][2:] == [str(tmp_path), os.path.expanduser("~/x"), "${HOME}/y"]  # noqa: PTH111


def sample(server, one, here):
    text = SPECIAL.get((server.name, one.name)) or SAMPLES.get(one.name, "not-a-key")
    return text.format(here=here)


@pytest.mark.wide
@pytest.mark.network
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
async def test_each_server_comes_up_and_lists_its_tools(name, tmp_path):
    server = servers()[name]
    draft = server.draft()
    if shutil.which(draft.fields["command"]) is None:
        pytest.skip(f"{draft.fields['command']} is not installed")
    wanted = {one.name: (sample(server, one, tmp_path),) for one in draft.inputs}
    fields = fill(draft, wanted)
    fields["env"] = {**os.environ, **fields.get("env", {})}  # proxies and caches of this machine
    config = StdioServer(
        **{**fields, "args": tuple(fields["args"])}, cwd=tmp_path, connect_timeout=300
    )
    settings = Settings(servers={name: config}, state_dir=tmp_path / "state")

    async with open_hub(settings) as hub:
        with anyio.fail_after(350):
            await hub.settled()
        snapshot = hub.snapshot().server(name)

    assert snapshot.failure is None, snapshot.failure
    assert snapshot.tools > 0
