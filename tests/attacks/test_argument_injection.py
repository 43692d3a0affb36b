"""Arguments that want to be more than one argument, or a command."""

import json
import sys
from pathlib import Path

import pytest

from multitap import Settings, StdioServer, open_hub
from multitap.config.variables import Scope, expand_server
from tests.gateway.talking import zoo
from tests.waiting import until

HOSTILE = (
    "; touch {pwned}",
    "$(touch {pwned})",
    "`touch {pwned}`",
    "| touch {pwned}",
    "&& touch {pwned}",
    "\ntouch {pwned}\n",
    "a b  c",
    "'\"\\",
    "--flag=x y",
    "*",
    "~",
    "",
)


async def test_arguments_reach_a_program_as_they_are_and_no_shell(tmp_path):
    pwned, seen = tmp_path / "pwned", tmp_path / "seen"
    args = [one.format(pwned=pwned) for one in HOSTILE]
    writes = f"import json, sys; open({str(seen)!r}, 'w').write(json.dumps(sys.argv[1:]))"
    server = StdioServer(command=sys.executable, args=("-c", writes, *args))
    async with open_hub(Settings(servers={"x": server}, state_dir=tmp_path / "state")):
        await until(lambda: seen.exists() and seen.read_text().endswith("]"))

    assert json.loads(seen.read_text()) == args
    assert not pwned.exists()


@pytest.mark.parametrize("value", ["a b", "${OTHER}", "$(id)", "; id", "x\ny", "${env:OTHER}"])
def test_the_value_of_a_variable_stays_one_argument_and_is_not_expanded_again(value):
    scope = Scope(env={"VALUE": value, "OTHER": "secret"}, folder=Path("/"), home=Path("/"))
    server = StdioServer(command="run", args=("--x", "${VALUE}", "-${VALUE}-"))

    assert expand_server(server, scope).args == ("--x", value, f"-{value}-")


@pytest.mark.parametrize("field", ["command", "args", "env"])
def test_nul_is_refused(field):
    given = {"command": "run", "args": (), "env": {}}
    given[field] = {"command": "r\0n", "args": ("a\0b",), "env": {"A": "b\0c"}}[field]

    with pytest.raises(ValueError, match=field):
        StdioServer(**given)


async def test_a_tool_s_arguments_reach_it_as_they_are(tmp_path):
    text = "".join(HOSTILE).format(pwned=tmp_path / "pwned")
    async with open_hub(Settings(servers={"zoo": zoo()}, state_dir=tmp_path)) as hub:
        assert (await hub.call("zoo_echo", {"text": text})).text == text

    assert not (tmp_path / "pwned").exists()
