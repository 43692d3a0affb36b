"""`multitap login` and `logout`, in a browser and without one."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import to_thread

from multitap.cli.browser import open_page
from multitap.trust.stored_logins import TokenStore
from tests.oauth.provider import provided, visit
from tests.terminals import terminal
from tests.trust.keyrings import no_keyring
from tests.waiting import PATIENCE, until, wait_for


@pytest.fixture(autouse=True)
def without_keyring():
    with no_keyring():
        yield


@pytest.fixture
def folder(home):
    """A home in which commands that are processes find nothing but what tests put there."""
    return home


def configure(folder, url, more=""):
    (folder / "multitap.toml").write_text(f'[servers.guarded]\nurl = "{url}"\n{more}')


@asynccontextmanager
async def typed(folder, *words, **env):
    """A command as a person runs it, in a process of its own."""
    command = [sys.executable, "-m", "multitap", "--config", str(folder / "multitap.toml"), *words]
    quiet = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring", **env}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **quiet},
    )
    try:
        with anyio.fail_after(PATIENCE):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def page_of(process):
    """The address that it wants the person to visit."""
    while line := (await process.stdout.readline()).decode():
        if found := re.match(r"https?://\S+", line):
            return found[0]
    raise AssertionError("it named no page")


async def ran(folder, *words, **env):
    async with typed(folder, *words, **env) as process:
        said = (await process.communicate())[0].decode()
        return process.returncode, said


async def test_a_person_logs_in_in_a_browser_and_stays_logged_in(folder):
    async with provided() as provider:
        configure(folder, provider.url)
        code, said = await ran(folder, "status", "--no-live")
        assert "run `multitap login guarded`" in said

        async with typed(folder, "login", "guarded") as process:
            shown = await visit(await page_of(process), follow=True)
            said = (await process.stdout.read()).decode()
            code = await process.wait()

        assert (code, "You are logged in to guarded" in shown) == (0, True), said
        assert "logged in to 'guarded'" in said
        _, said = await ran(folder, "status", "--no-live", "--json")
        assert json.loads(said)["servers"][0]["state"] == "connected", said
        _, said = await ran(folder, "call", "guarded_whoami", "--no-live")
        assert "nobody" in said

    assert [form["grant_type"] for form in provider.forms] == ["authorization_code"]


async def test_adding_a_server_that_wants_a_login_logs_in(folder):
    command = [sys.executable, "-m", "multitap", "--config", str(folder / "multitap.toml")]
    quiet = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring", "COLUMNS": "400"}
    async with provided() as provider:
        with terminal([*command, "add", "team", provider.url], **quiet) as person:
            page = await to_thread.run_sync(
                person.reads, r"'team' wants a login[\s\S]*?visit[^\n]*\n(https?://\S+)"
            )
            await visit(page[1], follow=True)
            code, written = await to_thread.run_sync(person.ends)

        assert code == 0, written
        assert "logged in to 'team'" in written
        assert "added team to" in written
        _, said = await ran(folder, "call", "team_whoami", "--no-live")
        assert "nobody" in said


async def test_without_a_terminal_adding_says_how_to_log_in(folder):
    async with provided() as provider:
        code, said = await ran(folder, "add", "team", provider.url)

    assert code == 4
    assert "hint: at a terminal, `multitap add` logs in" in said
    assert not (folder / "multitap.toml").exists()


def test_logging_in_to_an_unknown_server_says_how_to_add_it(multitap, home):
    named, address = multitap("login team"), multitap("login https://mcp.example.com/mcp")

    assert (named.code, address.code) == (2, 2)
    assert named.err.endswith("hint: `multitap add team URL` adds one, and logs in\n")
    assert "`multitap add https://mcp.example.com/mcp` adds one" in address.err


async def test_a_browser_is_started_with_an_address_that_works_once(folder, tmp_path):
    opened = tmp_path / "opened"
    program = tmp_path / "xdg-open"
    program.write_text(f'#!/bin/sh\necho "$@" > {opened}.new && mv {opened}.new {opened}\n')
    program.chmod(0o755)
    desktop = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DISPLAY": ":0"}
    async with provided() as provider:
        configure(folder, provider.url)
        async with typed(folder, "login", "guarded", **desktop) as process:
            page = await page_of(process)
            await until(opened.exists)
            address = opened.read_text().strip()
            assert await visit(address) == page
            await visit(page, follow=True)
            output, _ = await process.communicate()

    assert process.returncode == 0, output
    assert not {word for word in re.findall(r"[\w-]{20,}", page) if word in address}


async def test_a_second_login_uses_the_registration_of_the_first(folder):
    async with provided() as provider:
        configure(folder, provider.url)
        for _ in range(2):
            async with typed(folder, "login", "guarded") as process:
                await visit(await page_of(process), follow=True)
                await process.communicate()

    assert (len(provider.pages), len(provider.registrations)) == (2, 1)


async def test_without_a_browser_the_address_is_pasted(folder):
    async with provided() as provider:
        configure(folder, provider.url)
        async with typed(folder, "login", "guarded", "--no-browser") as process:
            came_back = await visit(await page_of(process))
            said, _ = await process.communicate(f"{came_back}\n".encode())

        assert process.returncode == 0, said.decode()
        assert TokenStore().find("guarded", provider.url) is not None


async def test_ctrl_c_ends_a_login_that_waits_for_an_address(folder):
    async with provided() as provider:
        configure(folder, provider.url)
        async with typed(folder, "login", "guarded", "--no-browser") as process:
            await page_of(process)
            process.send_signal(signal.SIGINT)
            output = (await process.stdout.read()).decode()

            assert await process.wait() == 130
            assert "killing" not in output


async def test_without_an_address_nobody_is_logged_in(folder):
    async with provided() as provider:
        configure(folder, provider.url)
        async with typed(folder, "login", "guarded", "--no-browser") as process:
            output, _ = await process.communicate(b"")

        assert (process.returncode, "no address was pasted" in output.decode()) == (4, True)


async def test_rights_can_be_asked_for(folder):
    async with provided() as provider:
        configure(folder, provider.url, "[servers.guarded.oauth]\ncallback_port = 18414\n")
        async with typed(folder, "login", "guarded", "--scope", "read write") as process:
            page = await page_of(process)
            assert "127.0.0.1%3A18414" in page or "127.0.0.1:18414" in page
            await visit(page, follow=True)
            await process.communicate()

        assert TokenStore().find("guarded", provider.url).scope == "read write"


async def test_refusing_a_login_is_reported_and_changes_nothing(folder):
    async with provided() as provider:
        configure(folder, provider.url)
        provider.refusal = "access_denied"
        async with typed(folder, "login", "guarded") as process:
            await visit(await page_of(process), follow=True)
            said = (await process.stdout.read()).decode()
            assert await process.wait() == 4

    assert "cannot log in: access_denied" in said
    assert not TokenStore().file.exists()


async def test_a_login_is_forgotten_and_revoked(folder):
    async with provided() as provider:
        configure(folder, provider.url)
        async with typed(folder, "login", "guarded") as process:
            await visit(await page_of(process), follow=True)
            await process.communicate()
        kept = TokenStore().find("guarded", provider.url).secrets

        code, said = await ran(folder, "logout", "guarded", "--revoke")

        assert (code, "logged out of 'guarded'" in said) == (0, True), said
        assert [one["token"] for one in provider.revoked] == [kept.refresh_token, kept.access_token]
        assert TokenStore().find("guarded", provider.url) is None
        assert kept.access_token not in TokenStore().file.read_text()


async def test_who_is_not_logged_in_can_log_out(folder):
    async with provided() as provider:
        configure(folder, provider.url)
        code, said = await ran(folder, "logout", "guarded")

    assert (code, "nobody is logged in to 'guarded'" in said) == (0, True)


async def test_an_open_server_is_left_alone(folder):
    async with provided(anonymous=True, resource={"authorization_servers": []}) as provider:
        provider.issuer = {"issuer": None}
        configure(folder, provider.url)
        code, said = await ran(folder, "login", "guarded")

    assert code == 4
    assert "it does not ask for a login" in said


@pytest.mark.parametrize(
    ("server", "words"),
    [
        pytest.param('command = "x"', "is a program, and has no login", id="program"),
        pytest.param('url = "https://x.test/"\noauth = false', "`oauth` is `false`", id="never"),
        pytest.param(
            'url = "https://x.test/"\n'
            'oauth = { grant = "client_credentials", issuer = "https://i.test" }',
            "logs in by itself",
            id="machine",
        ),
    ],
)
def test_what_cannot_be_logged_in_to_says_why(folder, multitap, monkeypatch, server, words):
    monkeypatch.setenv("MULTITAP_CONFIG", "multitap.toml")
    (folder / "multitap.toml").write_text(f"[servers.guarded]\n{server}\n")
    ended = multitap("login guarded")

    assert ended.code == 3
    assert words in ended.err


MACHINE = """[servers.guarded.oauth]
grant = "client_credentials"
client_id = "ci"
client_secret = "s3cret-of-ci"
"""
CLIENTS = {"ci": {"secret": "s3cret-of-ci", "redirects": []}}


@pytest.mark.timeout(300)  # runs a dozen commands
async def test_a_person_decides_where_a_program_logs_in_from_now_on(folder):
    async with provided(clients=CLIENTS) as provider, provided(clients=CLIENTS) as other:
        configure(folder, provider.url, MACHINE)
        code, output = await ran(folder, "call", "guarded_whoami", "--no-live")
        assert code == 0, output
        provider.resource = {"authorization_servers": [other.origin]}

        code, output = await ran(folder, "call", "guarded_whoami", "--no-live")
        assert "run `multitap login guarded`" in output
        assert {provider.origin, other.origin} <= set(re.findall(r"http://[\d.:]+\d", output))

        code, output = await ran(folder, "login", "guarded")
        assert (code, "there is no terminal to agree at" in output) == (4, True), output
        code, output = await anyio.to_thread.run_sync(answered, folder, "n")
        assert (code, "nothing was sent" in output) == (4, True), output
        assert other.forms == []

        other.protects, other.access = provider.url, provider.access
        code, output = await anyio.to_thread.run_sync(answered, folder, "y")
        assert code == 0, output
        code, output = await ran(folder, "call", "guarded_whoami", "--no-live")
        assert code == 0, output
        assert [form["grant_type"] for form in other.forms] == ["client_credentials"] * 2
        assert TokenStore().find("guarded", provider.url).issuer == other.origin

        code, output = await ran(folder, "logout", "guarded")
        assert TokenStore().find("guarded", provider.url) is None


def answered(folder, answer):
    """Run `multitap login` at a terminal, and answer its question; its exit code and output."""
    command = [sys.executable, "-m", "multitap", "--config", str(folder / "multitap.toml")]
    quiet = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    with terminal([*command, "login", "guarded"], **quiet) as person:
        person.reads("log in there")
        person.type(answer)
        return person.ends()


@pytest.mark.parametrize("choice", ["{browser}", "no-such-browser:{browser} --new %s"])
def test_the_browser_is_the_one_that_the_user_chose(tmp_path, monkeypatch, choice):
    visited, browser = tmp_path / "visited", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {visited}.new && mv {visited}.new {visited}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", choice.format(browser=browser))
    monkeypatch.delenv("DISPLAY", raising=False)

    assert open_page("https://example.com/login?a=1")
    wait_for(visited.exists)
    assert visited.read_text().split()[-1] == "https://example.com/login?a=1"
