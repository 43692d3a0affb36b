"""Threat: a path that leaves its folder by `..`, links or odd spellings gets around a rule."""

from pathlib import Path
from urllib.parse import quote

import pytest

from multitap.config import HttpServer, Settings, StdioServer
from multitap.config.policy_rules import PolicyRule
from multitap.names import ToolNames
from multitap.trust.policy import Policy
from multitap.wire.jsonrpc import encode

READ = ToolNames("files_read", "read", "files")


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "work"
    (inside / "deep" / "er").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("k")
    (tmp_path / "work2").mkdir()
    (inside / "file").write_text("f")
    (inside / "out").symlink_to(tmp_path / "secret")
    (inside / "key").symlink_to(tmp_path / "secret" / "key")
    (inside / "home").symlink_to(inside / "deep")
    (inside / "deep" / "up").symlink_to("../..")
    (inside / "loop").symlink_to("loop")
    (inside / "new").symlink_to(tmp_path / "secret" / "not-yet")
    return inside


def decide(folder, path, *, decision="deny", test="outside", config=None):
    config = config or StdioServer(command="files", cwd=folder)
    rules = [PolicyRule(decision=decision, arguments={"path": {test: [folder]}})]
    if decision == "allow":
        rules.append(PolicyRule(decision="deny"))
    guard = Policy(Settings(servers={}, policy=rules)).guard(READ, config, {})
    return guard.decide(encode({"path": path})).decision


HONEST = ["file", "deep/er/new", "./file", "deep/../file", "home/er", "a b/c", "50%/x", "it's"]
HONEST += ["\u00e9t\u00e9", "e\u0301t"]


@pytest.mark.parametrize("path", HONEST)
def test_paths_within_the_folder_are_allowed(folder, path):
    for one in (path, str(folder / path)):
        assert decide(folder, one) == "allow"
        assert decide(folder, one, decision="allow", test="inside") == "allow"


ESCAPES = [
    "..",
    "../secret/key",
    "deep/../../secret/key",
    "deep/er/../../../secret/key",
    "../work2/x",
    "out/key",
    "key",
    "new",
    "loop/../../secret/key",
    "deep/up/secret/key",
    "home/../../secret/key",
    "deep/up/../secret/key",
    "%2e%2e/secret/key",
    "..%2fsecret%2fkey",
    "%252e%252e%252fsecret",
    "..\\secret\\key",
    " ../secret/key",
    "../secret/key\n",
    "~/.ssh/id_rsa",
    "~root/.ssh",
    "$HOME/.ssh",
    "\uff0e\uff0e/secret/key",
    "\u2025/secret/key",
    "\uff0e\uff0e\uff0fsecret",
    "\u3000../secret/key",
    "${HOME}/.ssh",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/cwd/file",
    "/proc/self/root/etc/passwd",
    "/dev/fd/3",
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "FILE:///etc/passwd",
    "file:/etc/passwd",
    "file\0/../../secret",
    "x" * 5000,
    "",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_paths_out_of_the_folder_are_denied_however_they_are_spelled(folder, path):
    assert decide(folder, path) == "deny"
    assert decide(folder, path, decision="allow", test="inside") == "deny"
    if path and not path.startswith(("/", " ", "\u3000", "~", "$", "file", "FILE")):
        assert decide(folder, f"{folder}/{path}") == "deny"


@pytest.mark.parametrize("path", ["key", "out/key", "../secret/key", "..%2fsecret/key"])
def test_paths_into_a_forbidden_folder_are_denied(folder, path):
    secret, config = folder.parent / "secret", StdioServer(command="files", cwd=folder)

    assert decide(secret, path, test="inside", config=config) == "deny"
    assert decide(secret, "file", test="inside", config=config) == "allow"


@pytest.mark.parametrize("path", [["file"], {"file": 1}, 7, True])
def test_what_is_no_path_is_denied(folder, path):
    assert decide(folder, path) == "deny"


def test_a_link_that_is_made_after_the_rule_counts(folder):
    config = StdioServer(command="files", cwd=folder)
    rules = [PolicyRule(decision="deny", arguments={"path": {"outside": [folder]}})]
    guard = Policy(Settings(servers={}, policy=rules)).guard(READ, config, {})
    assert guard.decide(b'{"path":"later/key"}').decision == "allow"

    (folder / "later").symlink_to(folder.parent / "secret")

    assert guard.decide(b'{"path":"later/key"}').decision == "deny"


def test_relative_paths_of_a_server_elsewhere_cannot_be_judged(folder):
    remote = HttpServer(url="https://files.example/mcp")

    assert decide(folder, "file", config=remote) == "deny"
    assert decide(folder, str(folder / "file"), config=remote) == "allow"


def test_a_folder_that_is_not_known_is_not_trusted():
    rules = [PolicyRule(decision="deny", arguments={"path": {"outside": [Path("${NO_SUCH_VAR}")]}})]
    config = StdioServer(command="files")
    guard = Policy(Settings(servers={}, policy=rules)).guard(READ, config, {})

    assert guard.decide(encode({"path": str(Path.cwd())})).decision == "deny"


def test_the_folder_may_itself_be_reached_by_a_link(folder, tmp_path):
    alias = tmp_path / "alias"
    alias.symlink_to(folder)

    assert decide(alias, str(alias / "file")) == "allow"
    assert decide(alias, str(folder / "file")) == "allow"
    assert decide(alias, str(alias / "out" / "key")) == "deny"
    assert decide(folder, quote(str(folder / "file"))) == "allow"
