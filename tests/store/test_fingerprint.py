import pytest

from multitap.config.models import HttpServer, LocalServer, StdioServer
from multitap.store import fingerprint

PROGRAM = {"command": "npx", "args": ("-y", "server"), "env": {"TOKEN": "a"}, "cwd": "/srv"}
ADDRESS = {"url": "https://x.example/mcp", "headers": {"Authorization": "a", "X-Team": "b"}}


@pytest.mark.parametrize(
    "change",
    [
        {"command": "uvx"},
        {"args": ("-y", "other")},
        {"args": ("-y server",)},
        {"env": {"TOKEN": "a", "DEBUG": "1"}},
        {"env": {}},
        {"cwd": None},
    ],
)
def test_another_program_is_another_server(change):
    assert fingerprint(StdioServer(**PROGRAM | change)) != fingerprint(StdioServer(**PROGRAM))


@pytest.mark.parametrize(
    "change",
    [
        {"url": "https://x.example/other"},
        {"transport": "sse"},
        {"headers": {"Authorization": "a"}},
    ],
)
def test_another_address_is_another_server(change):
    assert fingerprint(HttpServer(**ADDRESS | change)) != fingerprint(HttpServer(**ADDRESS))


@pytest.mark.parametrize(
    "change",
    [{"env": {"TOKEN": "secret"}}, {"timeout": 5.0}, {"start": "lazy"}, {"enabled": False}],
)
def test_values_of_the_environment_and_our_own_settings_do_not_matter(change):
    assert fingerprint(StdioServer(**PROGRAM | change)) == fingerprint(StdioServer(**PROGRAM))


def test_values_case_and_order_of_headers_do_not_matter():
    other = ADDRESS | {"headers": {"x-team": "1", "authorization": "2"}}

    assert fingerprint(HttpServer(**other)) == fingerprint(HttpServer(**ADDRESS))


def test_servers_in_this_process_are_told_apart_by_class_and_name():
    class Server:
        def __init__(self, name):
            self.name = name

    first, second = (fingerprint(LocalServer(server=Server(name))) for name in "ab")

    assert first != second
    assert first == fingerprint(LocalServer(server=Server("a")))
