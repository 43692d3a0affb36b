"""What a publisher writes, as what would be run."""

import json

import pytest

from multitap.config.edit.drafts import fill
from multitap.errors import ConfigError
from multitap.published.packages import servers
from multitap.published.server_json import MOST, read_server
from tests.published.real_servers import ALL, OTHERS, described


def everywhere(_program):
    return True


def package(**more):
    table = {"registryType": "npm", "identifier": "thing", "version": "1.0.0", **more}
    return read_server({"name": "a/thing", "version": "1", "packages": [table]})


def args(server, **answers):
    draft = server.best(everywhere)
    return fill(draft, {key: (value,) for key, value in answers.items()})["args"]


@pytest.mark.parametrize("server", servers().values(), ids=lambda server: server.name)
def test_a_real_server_is_run_as_the_catalog_runs_it(server):
    read = read_server(json.dumps(described(server)).encode()).best(everywhere)
    ours = server.draft()

    answers = {one.name: ("/x",) for one in read.inputs}
    same = {one.name: ("/x",) for one in ours.inputs}
    if server.package.program is None:  # which a server.json cannot say
        wanted = fill(ours, same)
        for known in ("sandbox", "sandbox_rules"):  # likewise
            wanted.pop(known, None)
        assert fill(read, answers) == wanted
    assert read.provenance == "registry"
    assert {one.secret for one in read.inputs} == {one.secret for one in ours.inputs}


def test_there_are_more_than_sixty_real_ones():
    assert len(ALL) >= 63
    assert all(read_server(one).ways for one in ALL)


def test_a_remote_asks_for_what_its_address_and_headers_need():
    draft = read_server(OTHERS[0]).best(everywhere)

    assert fill(draft, {"key": ("k",)}) == {
        "url": "https://main.example.com/mcp",
        "transport": "streamable-http",
        "headers": {"Authorization": "Bearer k"},
    }
    assert {one.name: one.secret for one in draft.inputs} == {"tenant": False, "key": True}


def test_a_container_gets_its_variables_by_name_only():
    fields = fill(read_server(OTHERS[1]).best(everywhere), {"token": ("t",)})

    assert fields == {
        "command": "docker",
        "args": ["run", "-i", "--rm", "-e", "TOKEN", "ghcr.io/example/server:2.0.0"],
        "env": {"TOKEN": "t"},
    }


def test_a_nuget_package_is_run_by_dnx():
    fields = fill(read_server(OTHERS[2]).best(everywhere), {})

    assert (fields["command"], fields["args"]) == ("dnx", ["Example.Mcp@3.0.0", "--yes", "--"])


def test_arguments_in_all_their_kinds():
    server = package(
        runtimeArguments=[{"type": "named", "name": "--prefer-offline"}],
        packageArguments=[
            {"type": "positional", "value": "serve"},
            {
                "type": "named",
                "name": "--port",
                "value": "{port}",
                "variables": {"port": {"default": "80"}},
            },
            {"type": "named", "name": "--mode", "choices": ["a", "b"], "isRequired": True},
            {"type": "named", "name": "--optional", "description": "May be left out"},
            {"type": "named", "name": "--switch", "format": "boolean", "default": "true"},
            {"type": "named", "name": "--off", "format": "boolean"},
            {"type": "positional", "valueHint": "folder", "isRepeated": True},
        ],
    )
    draft = server.best(everywhere)

    assert fill(draft, {"mode": ("a",), "folder": ("x", "y")})["args"] == [
        *("-y", "--prefer-offline", "thing@1.0.0", "serve", "--port", "80"),
        *("--mode", "a", "--switch", "x", "y"),
    ]
    assert {one.name: one.choices for one in draft.inputs}["mode"] == ("a", "b")


def test_a_value_names_no_secret_of_the_user():
    server = package(packageArguments=[{"type": "positional", "value": "${auth:github} ${HOME}"}])

    assert args(server)[-1] == "$${auth:github} $${HOME}"


@pytest.mark.parametrize(
    "identifier",
    ["--eval=1", "-c", "thing;rm", "a b", "../x", "https://x/y.tgz", "git+ssh://x", "file:x", ""],
)
def test_an_identifier_cannot_be_anything_but_a_package(identifier):
    server = package(identifier=identifier)

    assert not server.ways
    assert "not the name of an npm package" in server.problems[0]


@pytest.mark.parametrize("version", ["latest x", "--flag", "^1.0", "1.0 || 2", ">1"])
def test_a_version_is_exact(version):
    assert "exact version" in package(version=version).problems[0]


def test_an_odd_runtime_is_not_run():
    draft = package(runtimeHint="/bin/sh").best(everywhere)

    assert draft.fields["command"] == "npx"
    assert "asks for '/bin/sh'; npx is used instead" in draft.warnings[0]


def test_the_way_is_chosen_by_what_is_installed():
    server = read_server(
        {
            "name": "a/b",
            "packages": [
                {"registryType": "npm", "identifier": "x"},
                {"registryType": "pypi", "identifier": "x"},
            ],
            "remotes": [{"type": "sse", "url": "https://x/sse"}],
        }
    )

    assert server.best(lambda program: program == "uvx").fields["command"] == "uvx"
    assert server.best(lambda _: False).fields["url"] == "https://x/sse"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"[]", "expected a JSON object"),
        (b"{}", "`name` is missing"),
        (b"[" * 100_000, "not JSON"),
        (b" " * 2_000_000, "at most"),
        (json.dumps({"name": "a/b", "packages": [{}] * (MOST + 1)}).encode(), "more than 64"),
    ],
)
def test_what_is_no_server_json_is_refused(content, words):
    with pytest.raises(ConfigError, match=words):
        read_server(content)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"registryType": "cargo", "identifier": "x"}, "'cargo' are not supported"),
        ({"registryType": "npm"}, "no `identifier`"),
        ({"registryType": "mcpb", "identifier": "https://x/y.mcpb"}, "no `fileSha256`"),
        (
            {"registryType": "mcpb", "identifier": "http://x/y", "fileSha256": "0" * 64},
            "not at an https:// address",
        ),
        (
            {"registryType": "npm", "identifier": "x", "transport": {"type": "streamable-http"}},
            "reached by its URL",
        ),
    ],
)
def test_a_way_that_cannot_be_used_says_why(table, words):
    server = read_server({"name": "a/b", "packages": [table]})

    with pytest.raises(ConfigError, match=words):
        server.best(everywhere)


def test_texts_are_made_harmless():
    server = read_server({"name": "a/b", "description": "\x1b]0;x\x07 hi\n" + "y" * 5000})

    assert "\x1b" not in server.description
    assert len(server.description) <= 301
