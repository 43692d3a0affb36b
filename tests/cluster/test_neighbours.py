"""Which programs of several hubs in one process are the same."""

import sys
from pathlib import Path

import pytest

from multitap.cluster.neighbours import identity_of
from multitap.config import StdioServer
from multitap.config.models import SandboxRules, ServerHome

STATE = Path("/state")
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/home/me", "HTTPS_PROXY": "http://proxy"}
CONFIG = StdioServer(command=sys.executable, args=("-m", "x"), env={"KEY": "1"})


def test_what_hubs_would_start_alike_is_the_same():
    again = StdioServer(command=sys.executable, args=("-m", "x"), env={"KEY": "1"})
    other = {**ENV, "PATH": "/bin:/nowhere", "TERM": "dumb", "LC_ALL": "C", "UNNAMED": "x"}

    first = identity_of("one", CONFIG, ENV, STATE)

    assert first is not None
    assert identity_of("one", again, other, STATE) == first


@pytest.mark.parametrize(
    ("config", "env"),
    [
        pytest.param(CONFIG.replace(args=("-m", "y")), ENV, id="arguments"),
        pytest.param(CONFIG.replace(env={"KEY": "2"}), ENV, id="variable"),
        pytest.param(CONFIG.replace(cwd=Path("/elsewhere")), ENV, id="folder"),
        pytest.param(
            CONFIG.replace(sandbox_rules=SandboxRules(hosts=("a.example",))), ENV, id="sandbox"
        ),
        pytest.param(CONFIG.at_home(ServerHome(start=Path("/home/me"))), ENV, id="start"),
        pytest.param(CONFIG.at_home(ServerHome(identity="trusted later")), ENV, id="trust"),
        pytest.param(CONFIG, {**ENV, "HTTPS_PROXY": "http://other"}, id="proxy"),
        pytest.param(CONFIG, {**ENV, "XDG_CONFIG_HOME": "/other"}, id="user folder"),
        pytest.param(CONFIG, {**ENV, "KUBECONFIG": "/private"}, id="private place"),
    ],
)
def test_what_differs_in_anything_that_a_program_sees_is_not_the_same(config, env):
    assert identity_of("one", config, env, STATE) != identity_of("one", CONFIG, ENV, STATE)


def test_a_program_that_cannot_be_found_is_no_ones():
    assert identity_of("one", StdioServer(command="no-such-program"), ENV, STATE) is None


def test_an_identity_tells_no_secret():
    secret = CONFIG.replace(env={"KEY": "very-secret"})

    assert "secret" not in str(identity_of("one", secret, ENV, STATE))
