"""What a server inherits from our environment."""

import pytest

from multitap.wire.process import child_environment

OURS = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "XDG_STATE_HOME": "/s",
    "https_proxy": "proxy",
    "SSL_CERT_FILE": "/ca.pem",
    "NODE_EXTRA_CA_CERTS": "/ca.pem",
    "npm_config_registry": "mirror",
    "UV_INDEX_URL": "mirror",
    "AWS_SECRET_ACCESS_KEY": "no",
    "GITHUB_TOKEN": "no",
    "npm_config__authToken": "no",
    "PYTHONPATH": "no",
}


@pytest.mark.parametrize("name", [name for name, value in OURS.items() if value != "no"])
def test_a_server_inherits_what_programs_need_to_start(name):
    assert child_environment(OURS, {})[name] == OURS[name]


@pytest.mark.parametrize("name", [name for name, value in OURS.items() if value == "no"])
def test_a_server_inherits_no_secret_and_nothing_unasked(name):
    assert name not in child_environment(OURS, {})


def test_what_the_configuration_names_wins():
    env = child_environment(OURS, {"GITHUB_TOKEN": "mine", "PATH": "/opt"})

    assert env["GITHUB_TOKEN"] == "mine"
    assert env["PATH"] == "/opt"
