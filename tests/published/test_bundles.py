"""Bundles as their publishers mean them."""

import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from multitap.config.edit.drafts import fill
from multitap.published.bundles import PLATFORM, read_bundle
from tests.attacks.test_bundles import MANIFEST, bundle, entry

CONFIG = {
    "command": "node",
    "args": ["${__dirname}/server/index.js", "${user_config.folders}", "--in=${HOME}"],
    "env": {"KEY": "${user_config.api_key}", "RAW": "${auth:x}"},
    "platform_overrides": {PLATFORM: {"env": {"KEY": "${user_config.api_key}", "HERE": "1"}}},
}
SETTINGS = {
    "api_key": {"type": "string", "title": "Key", "sensitive": True, "required": True},
    "folders": {"type": "directory", "multiple": True, "required": True},
    "loud": {"type": "boolean", "default": False},
    "place": {"type": "directory", "default": "${HOME}/x"},
}


def made(tmp_path, *more, user_config=None, **server):
    manifest = {
        **MANIFEST,
        "server": {**MANIFEST["server"], **server},
        "user_config": user_config or {},
    }
    path = bundle(tmp_path / "x.mcpb", *more, manifest=manifest)
    return read_bundle(path, into=tmp_path / "bundles")


def test_settings_of_the_user_become_inputs(tmp_path):
    draft = made(tmp_path, mcp_config=CONFIG, user_config=SETTINGS)
    (folder,) = (tmp_path / "bundles").iterdir()

    inputs = {one.name: one for one in draft.inputs}
    assert inputs["api-key"].secret
    assert inputs["folders"].multiple
    assert inputs["loud"].choices == ("true", "false")
    assert inputs["loud"].default == "false"
    assert inputs["place"].default == os.path.expanduser("~/x")  # noqa: PTH111 - as text
    assert fill(draft, {"api-key": ("k",), "folders": ("/a", "/b")}) == {
        "command": "node",
        "args": [f"{folder}/server/index.js", "/a", "/b", f"--in={os.path.expanduser('~')}"],  # noqa: PTH111
        "env": {"KEY": "k", "HERE": "1"},
    }
    assert draft.provenance == "bundle"


@pytest.mark.parametrize(
    ("kind", "command", "args"),
    [
        ("node", "node", ["{entry}"]),
        ("python", "python3", ["{entry}"]),
        ("uv", "uv", ["run", "--directory", "{folder}", "{entry}"]),
        ("binary", "{entry}", []),
    ],
)
def test_each_kind_is_run_in_its_way(tmp_path, kind, command, args):
    draft = made(tmp_path, type=kind)
    (folder,) = (tmp_path / "bundles").iterdir()
    places = {"entry": folder / "server" / "index.js", "folder": folder}

    assert draft.fields["command"] == command.format(**places)
    assert draft.fields["args"] == [word.format(**places) for word in args]


def test_what_can_be_run_stays_so_for_its_owner_alone(tmp_path):
    made(tmp_path, (entry("server/run", 0o755), "#!/bin/sh\n"))
    (folder,) = (tmp_path / "bundles").iterdir()

    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "server" / "run").stat().st_mode & 0o777 == 0o700
    assert (folder / "manifest.json").stat().st_mode & 0o777 == 0o600


def test_the_same_bundle_is_unpacked_once(tmp_path):
    first, second = made(tmp_path), made(tmp_path)

    assert second == replace(first, unpacked=None)
    assert len([*(tmp_path / "bundles").iterdir()]) == 1


def test_a_program_of_the_bundle_runs(tmp_path):
    script = f"#!{sys.executable}\nprint('here')\n"
    draft = made(
        tmp_path,
        (entry("server/run", 0o755), script),
        type="binary",
        entry_point="server/run",
        mcp_config={"command": "${__dirname}/server/run"},
    )

    assert subprocess.check_output([draft.fields["command"]], text=True) == "here\n"
