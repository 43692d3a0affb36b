"""Bundles that attack who unpacks them: each is refused with a reason, and nothing is left."""

import io
import json
import os
import stat
import struct
import zipfile

import pytest

from multitap.errors import ConfigError
from multitap.published import bundles
from multitap.published.bundles import read_bundle

MANIFEST = {
    "manifest_version": "0.3",
    "name": "weather",
    "version": "1.0.0",
    "description": "Says how the weather is",
    "server": {"type": "node", "entry_point": "server/index.js"},
}


def entry(name, mode=0o644, kind=stat.S_IFREG):
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (kind | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def bundle(path, *more, manifest=MANIFEST, raw=None):
    """A bundle with a manifest, an entry point and whatever else."""
    with zipfile.ZipFile(path, "w") as archive:
        text = json.dumps(manifest) if raw is None else raw
        archive.writestr(entry("manifest.json"), text)
        archive.writestr(entry("server/index.js"), "console.log(1)")
        for info, data in more:
            archive.writestr(info, data)
    return path


def encrypted(path):
    data = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.find(mark)
        while start >= 0:
            struct.pack_into("<H", data, start + flags, 1)
            start = data.find(mark, start + 4)
    path.write_bytes(data)


def corrupt(path):
    data = bytearray(path.read_bytes())
    at = data.find(b"server/index.js") + len(b"server/index.js")
    data[at + 2] ^= 0xFF
    path.write_bytes(data)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def lying(path):
    """Says in its directory that an entry is smaller than it is."""
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, 3)
    path.write_bytes(data)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "bundles"


def refused(path, home, **more):
    with pytest.raises(ConfigError) as caught:
        read_bundle(path, into=home, **more)
    assert not home.exists() or [*home.iterdir()] == []
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../../evil.sh", "leads out of the bundle"),
        ("server/../../evil.sh", "leads out of the bundle"),
        ("/etc/cron.d/evil", "absolute path"),
        ("C:/evil.exe", "absolute path"),
        ("..\\evil.exe", "absolute path"),
        ("a\x1b[2Jb", "cannot be used"),
        ("x/" * 600 + "y", "cannot be used"),
    ],
)
def test_zip_slip(tmp_path, home, name, words):
    path = bundle(tmp_path / "x.mcpb", (entry(name), "evil"))

    assert words in refused(path, home)
    assert not (tmp_path / "evil.sh").exists()


@pytest.mark.parametrize(
    ("kind", "mode", "words"),
    [
        (stat.S_IFLNK, 0o777, "is a link"),
        (stat.S_IFCHR, 0o666, "neither a file nor a folder"),
        (stat.S_IFBLK, 0o666, "neither a file nor a folder"),
        (stat.S_IFIFO, 0o666, "neither a file nor a folder"),
        (stat.S_IFSOCK, 0o666, "neither a file nor a folder"),
        (stat.S_IFREG, 0o4755, "somebody else's rights"),
        (stat.S_IFREG, 0o2755, "somebody else's rights"),
    ],
)
def test_links_devices_and_borrowed_rights(tmp_path, home, kind, mode, words):
    path = bundle(tmp_path / "x.mcpb", (entry("server/odd", mode, kind), "/etc/passwd"))

    assert words in refused(path, home)


def test_a_bomb_by_ratio(tmp_path, home):
    path = bundle(tmp_path / "x.mcpb", (entry("big"), b"\0" * 40_000_000))

    assert "times as large as it is packed" in refused(path, home)


def test_a_bomb_by_size(tmp_path, home, monkeypatch):
    monkeypatch.setattr(bundles, "MAX_UNPACKED", 1000)
    path = bundle(tmp_path / "x.mcpb", (entry("big"), os.urandom(2000)))

    assert "would take more than 1,000 bytes" in refused(path, home)


def test_a_bomb_by_count(tmp_path, home, monkeypatch):
    monkeypatch.setattr(bundles, "MOST_ENTRIES", 100)
    path = bundle(tmp_path / "x.mcpb", *((entry(f"f{n}"), "") for n in range(101)))

    assert "more than 100 entries" in refused(path, home)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("a", "a"), ("a", "A"), ("server/index.js", "x")])
def test_an_entry_that_is_there_twice(tmp_path, home, names):
    path = bundle(tmp_path / "x.mcpb", *((entry(name), "1") for name in names))

    assert "appears twice" in refused(path, home)


def test_a_file_that_is_a_folder_as_well(tmp_path, home):
    path = bundle(tmp_path / "x.mcpb", (entry("server/index.js/inner"), "1"))

    assert "inside a file" in refused(path, home)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (encrypted, "is encrypted"),
        (corrupt, "cannot be unpacked"),
        (truncated, "cannot be unpacked"),
        (lying, "server"),
    ],
)
def test_what_is_damaged_or_locked(tmp_path, home, harm, words):
    path = bundle(tmp_path / "x.mcpb")
    harm(path)

    assert words in refused(path, home)


def test_another_bundle_than_the_one_that_was_meant(tmp_path, home):
    path = bundle(tmp_path / "x.mcpb")

    assert "has the digest" in refused(path, home, digest="0" * 64)


def test_what_is_no_bundle(tmp_path, home):
    (tmp_path / "x.mcpb").write_bytes(b"\x7fELF" + os.urandom(100))
    empty = tmp_path / "y.mcpb"
    with zipfile.ZipFile(empty, "w"):
        pass

    assert "cannot be unpacked" in refused(tmp_path / "x.mcpb", home)
    assert "has no manifest.json" in refused(empty, home)
    assert "cannot be read" in refused(tmp_path / "nothing.mcpb", home)
    assert "cannot be read" in refused(tmp_path, home)


def test_a_huge_manifest(tmp_path, home):
    noise = io.BytesIO(os.urandom(2_000_000)).getvalue().hex()
    path = bundle(tmp_path / "x.mcpb", raw=json.dumps({"name": noise}))

    assert "its manifest.json has more than" in refused(path, home)


def server(**more):
    return {**MANIFEST, "server": {**MANIFEST["server"], **more}}


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (server(entry_point="../../../etc/passwd"), "leads out of the bundle"),
        (server(entry_point="/etc/passwd"), "leads out of the bundle"),
        (server(entry_point="server/nothing.js"), "is not there"),
        (server(entry_point=""), "no usable `entry_point`"),
        (server(type="shell"), "expected node, python, binary or uv"),
        (server(mcp_config={"command": "/bin/sh", "args": ["-c", "evil"]}), "not in the bundle"),
        (server(mcp_config={"command": "${__dirname}/../../x"}), "not in the bundle"),
        (server(mcp_config={"command": "node", "args": ["${user_config.x}"]}), "user_config"),
        (server(mcp_config={"command": "node", "args": ["\0"]}), "no usable `args`"),
        ({**MANIFEST, "compatibility": {"platforms": ["amiga"]}}, "for amiga only"),
        ({**MANIFEST, "name": 5}, "no usable `name`"),
    ],
)
def test_a_manifest_that_wants_too_much(tmp_path, home, manifest, words):
    path = bundle(tmp_path / "x.mcpb", manifest=manifest)

    with pytest.raises(ConfigError, match=words):
        read_bundle(path, into=home)
    assert [*home.iterdir()] == []


@pytest.mark.parametrize("raw", ["", "[]", "{", "[" * 5000])
def test_a_manifest_that_is_none(tmp_path, home, raw):
    path = bundle(tmp_path / "x.mcpb", raw=raw)

    with pytest.raises(ConfigError, match=r"manifest\.json"):
        read_bundle(path, into=home)
    assert [*home.iterdir()] == []
