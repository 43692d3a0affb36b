"""What a confined server's package managers learn from the user's files, and what they do not."""

import pytest

from multitap.sandbox.plan import package_settings

TOKEN = "npm_abcdefghijklmnop1234"


@pytest.fixture
def home(tmp_path):
    files = {
        ".npmrc": f"""
registry=https://someone:{TOKEN}@packages.example.com/npm/
@team:registry = "https://team.example.com/"
//packages.example.com/npm/:_authToken={TOKEN}
_password={TOKEN}
cafile=/etc/ssl/company.pem
https-proxy=http://proxy.example.com:3128
cache=/home/someone/.npm
""",
        ".config/pip/pip.conf": f"""
[global]
index-url = https://__token__:{TOKEN}@packages.example.com/simple
extra-index-url =
    https://one.example.com/simple
    https://two.example.com/simple
cert = /etc/ssl/company.pem
client-cert = /home/someone/key.pem
""",
        ".config/uv/uv.toml": f"""
native-tls = true
[[index]]
name = "company"
url = "https://someone:{TOKEN}@packages.example.com/simple"
default = true
[[index]]
name = "extra"
url = "https://extra.example.com/simple"
""",
        ".bunfig.toml": f"""
[install]
registry = {{ url = "https://bun.example.com/", token = "{TOKEN}" }}
""",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_registries_proxies_and_certificates_are_handed_on(home):
    settings = package_settings(home, {})

    assert settings == {
        "npm_config_registry": "https://packages.example.com/npm/",
        "npm_config_@team:registry": "https://team.example.com/",
        "npm_config_cafile": "/etc/ssl/company.pem",
        "npm_config_https_proxy": "http://proxy.example.com:3128",
        "PIP_INDEX_URL": "https://packages.example.com/simple",
        "PIP_EXTRA_INDEX_URL": "https://one.example.com/simple https://two.example.com/simple",
        "PIP_CERT": "/etc/ssl/company.pem",
        "UV_NATIVE_TLS": "true",
        "UV_DEFAULT_INDEX": "https://packages.example.com/simple",
        "UV_INDEX": "extra=https://extra.example.com/simple",
        "BUN_CONFIG_REGISTRY": "https://bun.example.com/",
    }


def test_no_token_is_handed_on_from_files_or_variables(home):
    inherited = {"PIP_INDEX_URL": f"https://me:{TOKEN}@other.example.com/simple"}

    settings = package_settings(home, inherited)

    assert TOKEN not in " ".join(settings.values())
    assert settings["PIP_INDEX_URL"] == "https://other.example.com/simple"


@pytest.mark.parametrize("text", ["", "\0", "[[", "index = 3", "= =\n[install\nregistry"])
def test_files_that_cannot_be_read_give_nothing(tmp_path, text):
    for name in (".npmrc", ".config/pip/pip.conf", ".config/uv/uv.toml", ".bunfig.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert package_settings(tmp_path, {}) == {}
