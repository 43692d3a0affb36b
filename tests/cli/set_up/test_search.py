"""Servers that could be added, and the words after `add` that mean one."""

import pytest

from multitap.cli.set_up import published
from multitap.cli.set_up.add_request import AddRequest, resolve
from multitap.config.edit.drafts import fill
from multitap.errors import ConfigError
from multitap.published.packages import servers
from tests.attacks.test_bundles import bundle
from tests.published.real_servers import ALL, entry, registry

NOBODY = "http://127.0.0.1:1"


def test_the_catalog_and_the_registry_are_searched(multitap, monkeypatch):
    with registry([entry(one) for one in ALL]) as (url, _):
        monkeypatch.setenv("MULTITAP_REGISTRY", url)
        ended = multitap("search only a remote")
        both = multitap("search --json git")

    assert ended.lines[1].split()[:2] == ["com.example/remote", "registry"]
    assert "git" in [one["name"] for one in both.json["catalog"]]
    assert "io.github.someone/git" in [one["name"] for one in both.json["registry"]]


def test_offline_the_catalog_still_works(multitap, monkeypatch):
    monkeypatch.setenv("MULTITAP_REGISTRY", NOBODY)

    ended = multitap("search git")
    nothing = multitap("search nonesuch")

    assert ended.code == 0
    assert ended.lines[1].split()[:2] == ["git", "catalog"]
    assert "the registry was not searched: http://127.0.0.1:1: cannot connect" in ended.err
    assert nothing.code == 4


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("git", "git"),
        ("web pages", "fetch"),
        ("read pdf files", "markitdown"),
        ("make a spreadsheet", "excel"),
        ("send a message to my team", "slack"),
        ("take a screenshot of a website", "playwright"),
    ],
)
def test_a_server_is_found_by_what_it_does(multitap, text, name):
    ended = multitap(f"search --offline {text}")

    assert ended.code == 0
    assert ended.lines[1].split()[0] == name


def test_what_nobody_does_is_not_found(multitap):
    ended = multitap("search --offline nonesuch")

    assert (ended.code, ended.out, ended.err) == (1, "", "nothing matches 'nonesuch'\n")


def test_without_a_word_the_catalog_is_listed(multitap, monkeypatch):
    monkeypatch.setenv("MULTITAP_REGISTRY", NOBODY)

    ended = multitap("search")

    assert ended.code == 0
    assert [line.split()[0] for line in ended.lines[1:]] == [*servers()]
    assert "`multitap add NAME` adds one" in ended.err
    assert "cannot connect" not in ended.err


def test_a_project_cannot_name_the_registry(multitap, home):
    (home / "multitap.toml").write_text(f'registry = "{NOBODY}"\n')

    assert published.registry_address() == published.DEFAULT


def meant(*words, **more):
    return resolve(AddRequest(arguments=words, **more))[0]


@pytest.mark.parametrize(
    ("words", "name", "argv"),
    [
        (("time",), "time", ["uvx", "mcp-server-time@"]),
        (("clock", "time"), "clock", ["uvx", "mcp-server-time@"]),
        (("npm:thing@1.2.3",), "thing", ["npx", "-y", "thing@1.2.3"]),
        (("@scope/thing",), "thing", ["npx", "-y", "@scope/thing"]),
        (("@scope/thing@2.0.0",), "thing", ["npx", "-y", "@scope/thing@2.0.0"]),
        (("pypi:thing==1.2",), "thing", ["uvx", "thing@1.2"]),
        (("oci:ghcr.io/a/b:1",), "b:1", ["docker", "run", "-i", "--rm", "ghcr.io/a/b:1"]),
    ],
)
def test_a_word_after_add_means_what_was_published(home, words, name, argv):
    draft = meant(*words)

    assert draft.name.startswith(name[:1])
    assert draft.provenance == "registry"
    command = [draft.fields["command"], *draft.fields["args"]]
    assert len(command) == len(argv)
    assert all(word.startswith(start) for word, start in zip(command, argv, strict=True))


def test_a_name_of_the_registry_is_asked_for_there(home, monkeypatch):
    with registry([entry(one) for one in ALL]) as (url, _):
        monkeypatch.setenv("MULTITAP_REGISTRY", url)
        draft = meant("io.github.someone/fetch")

        with pytest.raises(ConfigError, match="the registry has no server named"):
            meant("io.github.someone/nothing")

    assert draft.fields["command"] == "uvx"


def test_a_description_and_a_bundle_are_files(home):
    import json  # noqa: PLC0415 - here only

    (home / "server.json").write_text(json.dumps(ALL[0]))
    bundle(home / "weather.mcpb")

    described, bundled = meant("server.json"), meant("mine", "weather.mcpb")

    assert described.fields["command"] == "npx"
    assert bundled.name == "mine"
    assert fill(bundled, {})["command"] == "node"
    assert meant(text=json.dumps(ALL[0])).fields == described.fields


@pytest.mark.parametrize("word", ["./nothing.json", "/no/server.json", "~/x", "../x.mcpb", "x.dxt"])
def test_a_file_that_is_not_there_is_not_asked_for_elsewhere(home, monkeypatch, word):
    monkeypatch.setenv("MULTITAP_REGISTRY", NOBODY)

    with pytest.raises(ConfigError, match="there is no file"):
        meant(word)


@pytest.mark.parametrize("word", ["npm:--eval", "pypi:-c", "npm:thing@^1", "oci:../x"])
def test_what_is_no_package_is_refused(home, word):
    with pytest.raises(ConfigError, match="is not"):
        meant(word)
