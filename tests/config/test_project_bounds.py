"""What a project's server may name is decided by where it leads, when it starts."""

import json

import pytest

from multitap.config.models import OAuth, StdioServer
from multitap.config.project_bounds import check_expanded, leads_inside
from multitap.errors import ConfigError
from multitap.oauth.errors import LoginFailed
from multitap.oauth.grants import bearer_form
from multitap.trust.projects import Projects, expand_trusted, load_trusted
from tests.trusting import trust


@pytest.fixture(autouse=True)
def project(own_project):
    return own_project


def write(project, **keys):
    lines = (f"{key} = {json.dumps(value)}" for key, value in keys.items())
    (project / "multitap.toml").write_text("\n".join(("[servers.a]", "command = 'x'", *lines)))


def start():
    loaded = load_trusted()
    return expand_trusted(loaded, "a", loaded.settings.servers["a"])


OUT = "x${pathSeparator}..${pathSeparator}.."


@pytest.mark.parametrize("field", ["read", "write"])
@pytest.mark.parametrize(
    "path", [OUT, "${/}etc", "~/docs", "${userHome}", "${OUT}", "..", "/", "link", "link/below"]
)
def test_a_rule_that_leads_out_opens_nothing(project, tmp_path, field, path):
    (project / "link").symlink_to(tmp_path)
    (project / "x").mkdir()
    (project / "multitap.toml").write_text(
        f'[servers.a]\ncommand = "x"\nsandbox_rules = {{ {field} = ["{path}", "x"] }}\n'
    )
    trust(project)
    loaded = load_trusted()

    assert [problem.key for problem in loaded.errors] == [f"servers.a.sandbox_rules.{field}"]
    assert getattr(start().sandbox_rules, field) == (project / "x",)


@pytest.mark.parametrize(
    "keys",
    [
        "sandbox_rules = { write = ['data'] }",
        "sandbox_rules = { read = ['data/deep'] }",
        "cwd = 'data'",
        "env_file = 'data'",
        "args = ['${file:data}']",
        "env = { A = '${file:data}' }",
    ],
)
def test_a_link_that_is_swapped_after_the_check_leads_nowhere(project, tmp_path, keys):
    """Between the check of what is trusted and the use of it."""
    is_file = "file" in keys
    outside = tmp_path / "outside"
    data = project / "data"
    if is_file:
        outside.write_text("A=s3cret")
        data.write_text("A=1")
    else:
        outside.mkdir()
        data.mkdir()
    (project / "multitap.toml").write_text(f"[servers.a]\ncommand = 'x'\n{keys}\n")
    trust(project)

    class SwapsLater(Projects):
        def check_start(self, *args):
            grant = super().check_start(*args)
            data.unlink() if is_file else data.rmdir()
            data.symlink_to(outside)
            return grant

    loaded = load_trusted(projects=SwapsLater())

    with pytest.raises(ConfigError, match="outside the project"):
        expand_trusted(loaded, "a", loaded.settings.servers["a"])


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:3000", "localhost", "LOCALHOST.:80", "*.localhost", "x.localhost", "[::1]:80"),
        *("10.0.0.0/8", "192.168.1.1", "169.254.169.254", "0.0.0.0/0", "0.0.0.0", "::/0"),
        *("::ffff:127.0.0.1", "64:ff9b::/96", "2002:7f00:1::", "fe80::/10", "fd00::/8"),
    ],
)
def test_a_project_opens_neither_this_machine_nor_its_networks(project, host):
    (project / "multitap.toml").write_text(
        f'[servers.a]\ncommand = "x"\nsandbox_rules = {{ hosts = ["{host}", "a.example"] }}\n'
    )
    trust(project)
    loaded = load_trusted()

    assert [problem.key for problem in loaded.errors] == ["servers.a.sandbox_rules.hosts"]
    assert start().sandbox_rules.hosts == ("a.example",)


@pytest.mark.parametrize("host", ["*", "*.example.com:8443", "93.184.216.34", "2606:4700::/32"])
def test_public_hosts_are_a_projects_own_choice(host):
    assert not leads_inside(host)


def test_a_host_in_a_variable_is_checked_by_its_value(project, monkeypatch):
    monkeypatch.setenv("WHERE", "127.0.0.1")
    (project / "multitap.toml").write_text(
        '[servers.a]\ncommand = "x"\nsandbox_rules = { hosts = ["${WHERE}:3000"] }\n'
    )
    trust(project)

    with pytest.raises(ConfigError, match=r"sandbox_rules\.hosts"):
        start()


def test_what_a_variable_makes_of_a_path_is_checked_again(project):
    (project / "sub").mkdir()
    config = StdioServer(command="x", cwd=project / "sub")

    assert check_expanded(config, project).cwd == project / "sub"
    with pytest.raises(ConfigError, match="`cwd`"):
        check_expanded(config, project / "sub" / "deeper")


async def test_a_statement_is_read_only_in_the_project_whenever_it_is_needed(project, tmp_path):
    (tmp_path / "key").write_text("s3cret")
    file = project / "token"
    file.write_text("mine")
    login = OAuth(grant="jwt_bearer", client_id="x", assertion_file=file)
    before = await bearer_form(login, "https://i.example", "https://r.example", within=project)
    file.unlink()
    file.symlink_to(tmp_path / "key")

    assert before["assertion"] == "mine"
    with pytest.raises(LoginFailed, match="outside the project"):
        await bearer_form(login, "https://i.example", "https://r.example", within=project)
