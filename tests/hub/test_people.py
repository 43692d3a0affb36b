""""""

from multitap.config import HttpServer, StdioServer
from multitap.hub.personal_servers import with_values
from multitap.trust.personal_vault import keys_of


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
