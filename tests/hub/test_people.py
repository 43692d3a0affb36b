"""What a person's own values become in the entry of a server."""

from pathlib import Path

import pytest

from multitap import Settings, open_hub
from multitap.config import HttpServer, StdioServer
from multitap.config.variables import Scope, expand_server
from multitap.errors import ConfigError
from multitap.hub.personal_servers import with_values
from multitap.trust.personal_vault import FILE_NAME, keys_of
from tests.gateway.people import person, program


def test_the_keys_of_a_person_are_those_that_the_server_gets():
    server = HttpServer(
        url="https://x.example/mcp",
        headers={"X-Key": "${auth:one} ${env:TWO} ${auth:three:-none}"},
        oauth={"client_id": "us", "client_secret": "${auth:ours}"},
        credentials="per-user",
    )

    assert keys_of(server) == ("one", "three")


def test_values_are_put_in_as_they_are():
    server = StdioServer(
        command="run",
        args=("--key=${auth:key}", "${auth:other}"),
        env={"KEY": "${auth:key}", "HOME": "/people/${MULTITAP_PERSON}", "SHARED": "${env:SHARED}"},
    )

    filled = with_values(server, {"key": "a${b}c", "MULTITAP_PERSON": "mark"})

    assert filled.args == ("--key=a$${b}c", "${auth:other}")
    assert dict(filled.env) == {
        "KEY": "a$${b}c",
        "HOME": "/people/mark",
        "SHARED": "${env:SHARED}",
    }


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"user": "${env:SECRET}", "key": "x"}, id="a variable"),
        pytest.param({"user": "$${env:SECRET}", "key": "x"}, id="an escaped variable"),
        pytest.param({"user": "$", "key": "{env:SECRET}"}, id="two halves of a variable"),
        pytest.param({"user": "${auth:key}", "key": "{env:SECRET}"}, id="one within another"),
        pytest.param({"user": "a", "key": "b$"}, id="half of a variable at the end"),
    ],
)
def test_no_value_of_a_person_reads_a_variable_of_the_gateway(values):
    server = StdioServer(command="run", args=("${auth:user}${auth:key}${env:OTHER}",))
    scope = Scope(env={"SECRET": "the-gateways-own", "OTHER": "-"}, folder=Path(), home=Path())
    try:
        [filled] = expand_server(with_values(server, values), scope).args
    except ConfigError:
        return

    assert filled == f"{values['user']}{values['key']}-"


@pytest.mark.usefixtures("own_logins")
async def test_accounts_that_cannot_be_read_now_do_not_end_the_hub(tmp_path, caplog):
    async with open_hub(Settings(servers={"mine": program()}, state_dir=tmp_path)) as hub:
        alice = hub.people.of(person("alice"))
        await alice.loaded.wait()
        path = hub.people.vault.folder / FILE_NAME
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(b"damaged")
        path.chmod(0o600)
        await alice.reload()

    assert "mine: the account of a person cannot be read" in caplog.text
