import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.config import (
    HttpServer,
    LocalServer,
    OAuth,
    Place,
    Reference,
    Scope,
    StdioServer,
    Unresolved,
    expand_server,
    variables_of,
)
from multitap.config.variables import LARGEST_FILE, expand, parse_env
from multitap.errors import ConfigError

FILES = {Path("/p/token"): "t0k\n", Path("/h/.netrc"): "home", Path("/p/.env"): "A=1\nB=2\n"}


def read(path):
    try:
        return FILES[path]
    except KeyError:
        raise FileNotFoundError(2, "No such file or directory", str(path)) from None


SCOPE = Scope(
    env={"A": "1", "EMPTY": "", "EVIL": "${A} $${A} `x` ; rm", "SPACED": "a b"},
    folder=Path("/p"),
    home=Path("/h"),
    auth={"gh": "s3cret", "my key": "k"}.get,
    read=read,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain $A {A} $", "plain $A {A} $"),
        ("${A}", "1"),
        ("x${A}y${A}z", "x1y1z"),
        ("${env:A}", "1"),
        ("${NONE:-d}", "d"),
        ("${env:NONE:-d}", "d"),
        ("${A:-d}", "1"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${NONE:-}", ""),
        ("${NONE:-https://x:1/y}", "https://x:1/y"),
        ("${auth:gh}", "s3cret"),
        ("${auth:my key}", "k"),
        ("Bearer ${auth:none:-x}", "Bearer x"),
        ("${file:token}", "t0k"),
        ("${file:none:-d}", "d"),
        ("${file:~/.netrc}", "home"),
        ("${workspaceFolder}/x", "/p/x"),
        ("${workspaceFolderBasename}${/}${pathSeparator}", "p//"),
        ("${userHome}", "/h"),
        ("$${A}", "${A}"),
        ("$$${A}", "$${A}"),
        ("$${A} ${A}", "${A} 1"),
        ("${EVIL}", "${A} $${A} `x` ; rm"),
    ],
)
def test_a_text_is_expanded_once(text, expected):
    assert expand(text, SCOPE) == expected


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("${NONE}", "the variable `NONE` is not set", "set it, or write `${NONE:-default}`"),
        ("${env:NONE}", "the variable `NONE` is not set", "set it, or write `${NONE:-default}`"),
        (
            "${auth:none}",
            "the secret `none` is not set",
            "run `multitap secret set none`",
        ),
        ("${file:none}", "cannot read `none`: No such file or directory", None),
        ("${A", "`${` without `}`", "write `$${` where you mean `${` itself"),
        ("${}", "`${}` is not a variable", "write `$${` where you mean `${` itself"),
        ("${A%x}", "`${A%x}` is not a variable", "write `$${` where you mean `${` itself"),
        ("${1}", "`${1}` is not a variable", "write `$${` where you mean `${` itself"),
        ("${envv:A}", "`${envv:A}` is not a variable", "did you mean `env`?"),
        ("${input:x}", "`${input:x}` is not a variable", "write `$${` where you mean `${` itself"),
        ("${NONE:-${A}}", "`${NONE:-${A}` contains another variable", "they cannot be nested"),
    ],
)
def test_what_cannot_be_expanded_is_an_error_and_never_an_empty_text(text, message, hint):
    with pytest.raises(ConfigError) as caught:
        expand(text, SCOPE)

    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_every_field_of_a_program_is_expanded():
    config = StdioServer(
        command="~/bin/${A}",
        args=("${SPACED}", "--x=${EVIL}", "~"),
        env={"B": "env", "T": "${auth:gh}"},
        env_file=Path("${workspaceFolder}/.env"),
        cwd=Path("sub/${A}"),
        timeout=5,
    )

    assert expand_server(config, SCOPE) == StdioServer(
        command="/h/bin/1",
        args=("a b", "--x=${A} $${A} `x` ; rm", "~"),
        env={"A": "1", "B": "env", "T": "s3cret"},
        env_file=None,
        cwd=Path("/p/sub/1"),
        timeout=5,
    )


def test_every_field_of_a_remote_server_is_expanded():
    config = HttpServer(
        url="https://${NONE:-host}/mcp",
        headers={"Authorization": "Bearer ${auth:gh}"},
        oauth=OAuth(client_id="${A}", client_secret="${auth:gh}", callback_port=80),
    )

    assert expand_server(config, SCOPE) == HttpServer(
        url="https://host/mcp",
        headers={"Authorization": "Bearer s3cret"},
        oauth=OAuth(client_id="1", client_secret="s3cret", callback_port=80),
    )


def test_a_server_in_this_process_has_nothing_to_expand():
    config = LocalServer(server=object())

    assert expand_server(config, SCOPE) is config


def test_c8_d12_an_unset_variable_is_named_with_its_place():
    config = StdioServer(command="x", env={"TOKEN": "${NONE}"})
    place = Place(Path("/p/mcp.json"), 7, 22)

    with pytest.raises(Unresolved) as caught:
        expand_server(config, SCOPE, places={"env.TOKEN": place})

    assert str(caught.value) == "/p/mcp.json:7:22: `env.TOKEN`: the variable `NONE` is not set"
    assert (caught.value.variable, caught.value.key, caught.value.place) == (
        "NONE",
        "env.TOKEN",
        place,
    )
    assert caught.value.hint == "set it, or write `${NONE:-default}`"


@pytest.mark.parametrize(
    ("config", "env", "message"),
    [
        (
            HttpServer(url="${U}"),
            {"U": "ftp://hunter2"},
            "`url`: not valid after its variables are expanded",
        ),
        (
            HttpServer(url="https://x", headers={"A": "${U}"}),
            {"U": "hunter2\r\nX: y"},
            "`headers`: not valid",
        ),
        (StdioServer(command="${U}"), {"U": ""}, "`command`: not valid"),
        (StdioServer(command="x", args=("${U}",)), {"U": "hunter2\0"}, "`args`: not valid"),
    ],
)
def test_a_value_that_makes_a_server_invalid_is_reported_without_being_shown(config, env, message):
    with pytest.raises(ConfigError) as caught:
        expand_server(config, Scope(env=env, folder=Path("/p"), home=Path("/h")))

    assert str(caught.value).startswith(message)
    assert "hunter2" not in str(caught.value)


def test_an_environment_file_that_is_missing_is_reported():
    with pytest.raises(Unresolved, match="`env_file`: cannot read `none`: No such file"):
        expand_server(StdioServer(command="x", env_file=Path("none")), SCOPE)


def test_the_variables_of_a_server_can_be_listed_without_their_values():
    config = StdioServer(
        command="${A}", args=("${B:-c}", "$${D}", "${"), env={"T": "${auth:gh} ${userHome}"}
    )

    assert variables_of(config) == (
        ("command", Reference("env", "A")),
        ("args", Reference("env", "B", "c")),
        ("env.T", Reference("auth", "gh")),
        ("env.T", Reference("folder", "userHome")),
    )
    remote = HttpServer(url="https://x/${A}", oauth=OAuth(client_id="${B}"))
    assert [key for key, _ in variables_of(remote)] == ["url", "oauth.client_id"]
    assert variables_of(LocalServer(server=None)) == ()


def test_lines_of_an_environment_file_are_understood_as_shells_do():
    content = (
        "# c\n\nA=1\nexport B = two words \nC='x # y'\nD=\"q\"\nE=v # c\nF=\n=x\nG\nH=a=b${A}\n"
    )

    assert parse_env(content) == {
        "A": "1",
        "B": "two words",
        "C": "x # y",
        "D": "q",
        "E": "v",
        "F": "",
        "H": "a=b${A}",
    }


def test_files_are_read_from_disk_by_default(tmp_path):
    (tmp_path / "token").write_text("t\n")

    assert expand("${file:token}", Scope(env={}, folder=tmp_path, home=tmp_path)) == "t"


def test_only_files_that_can_hold_a_value_are_read(tmp_path):
    (tmp_path / "big").write_text("x" * (LARGEST_FILE + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    os.mkfifo(tmp_path / "pipe")
    scope = Scope(env={}, folder=tmp_path, home=tmp_path)

    for name, reason in {
        "big": "it is too large",
        "binary": "it is not text",
        "pipe": "it is not a file",
        "none": "No such file or directory",
    }.items():
        with pytest.raises(Unresolved, match=f"cannot read `{name}`: {reason}"):
            expand(f"${{file:{name}}}", scope)


def test_a_scope_does_not_show_its_environment():
    assert "s3cret" not in repr(Scope(env={"A": "s3cret"}, folder=Path("/p"), home=Path("/h")))


@given(st.text())
def test_a_text_without_a_variable_is_left_alone(text):
    if "${" not in text:
        assert expand(text, SCOPE) == text


@given(st.text("${}A:-x"))
def test_an_escaped_text_comes_out_as_it_was(text):
    # `$` before `${` cannot be told from an escape, so that is the one thing it cannot say
    if "$${" not in text:
        assert expand(text.replace("${", "$${"), SCOPE) == text


@given(st.text())
def test_what_a_variable_holds_is_put_in_as_it_is(value):
    scope = Scope(env={"V": value}, folder=Path("/p"), home=Path("/h"))

    assert expand("<${V}>", scope) == f"<{value}>"


@given(st.lists(st.text(st.characters(exclude_characters="\0")), max_size=5))
def test_an_argument_stays_one_argument(values):
    scope = Scope(
        env={f"V{index}": value for index, value in enumerate(values)},
        folder=Path("/p"),
        home=Path("/h"),
    )
    config = StdioServer(command="x", args=tuple(f"${{V{index}}}" for index in range(len(values))))

    assert expand_server(config, scope).args == tuple(values)


@given(st.text("${}abAN:-/. ~envfileauth"))
def test_no_text_breaks_the_engine(text):
    with suppress(ConfigError):
        expand(text, SCOPE)


def test_the_hint_names_the_command_that_stores_a_secret():
    with pytest.raises(ConfigError) as caught:
        expand("${auth:gh}", Scope(env={}, folder=Path("/work"), home=Path("/home/me")))

    assert str(caught.value) == "the secret `gh` is not set"
    assert caught.value.hint == "run `multitap secret set gh`"
