import pytest

from multitap.config import HttpServer, OAuth, Settings, StdioServer
from multitap.errors import ConfigError


def test_durations_are_seconds_or_texts():
    server = StdioServer(command="x", timeout="1m30s", connect_timeout=5, idle_timeout="500ms")

    assert (server.timeout, server.connect_timeout, server.idle_timeout) == (90, 5, 0.5)
    assert Settings(drain_timeout=0, health_interval="1m").health_interval == 60


@pytest.mark.parametrize("timeout", [0, -1, "0s", "30", "soon", True, float("inf")])
def test_a_timeout_is_a_positive_span(timeout):
    with pytest.raises(ConfigError):
        StdioServer(command="x", timeout=timeout)


def test_a_long_timeout_is_not_cut_by_the_default_of_the_hard_one():
    assert StdioServer(command="x").longest_call == 600
    assert StdioServer(command="x", timeout="15m").longest_call == 900
    assert StdioServer(command="x", timeout="15m", hard_timeout=60).longest_call == 60


def test_secrets_are_neither_in_repr_nor_in_errors():
    server = StdioServer(command="x", env={"TOKEN": "hunter2"})
    remote = HttpServer(
        url="https://x", headers={"A": "hunter2"}, oauth=OAuth(client_secret="hunter2")
    )
    with pytest.raises(ConfigError) as caught:
        HttpServer(url="hunter2", headers={"A": "hunter2\n"})

    assert "hunter2" not in f"{server} {remote!r} {caught.value}"


def test_a_header_cannot_smuggle_another_one():
    with pytest.raises(ConfigError, match="line break"):
        HttpServer(url="https://x", headers={"A": "b\r\nC: d"})


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A": "x\0"}])
def test_an_environment_that_no_program_can_have_is_refused(env):
    with pytest.raises(ConfigError):
        StdioServer(command="x", env=env)


@pytest.mark.parametrize("url", ["https://x/mcp", "${BASE}/mcp", "https://${HOST}/mcp"])
def test_an_address_may_wait_for_its_variables(url):
    assert HttpServer(url=url).url == url


@pytest.mark.parametrize("url", ["", "ftp://x", "x", "unix:///p.sock", "https://"])
def test_any_other_address_is_refused(url):
    with pytest.raises(ConfigError):
        HttpServer(url=url)


def test_a_repr_has_only_what_was_set():
    settings = Settings(servers={"a": {"command": "x", "timeout": 30}})

    assert repr(settings) == "Settings(servers={'a': StdioServer(timeout=30.0, command='x')})"


def test_a_misspelt_setting_is_recognised():
    with pytest.raises(ConfigError, match="did you mean `command`"):
        Settings(servers={"a": {"comand": "x"}})
