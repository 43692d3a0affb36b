"""A hub without settings: the files that the command line reads."""

import asyncio
import json
import re
from pathlib import Path

import anyio
import pytest

from multitap import ConfiguredEnvironment, Settings, StdioServer, SyncHub, open_hub
from multitap.errors import CallTimeout, ConfigError, HubClosed, UnknownName, UntrustedWarning
from multitap.events import LinkState, Reloaded
from tests.trusting import trust
from tests.waiting import PATIENCE
from tests.zoo.modes import command


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A project of its own, with nothing of the real user's around it."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MULTITAP_CONFIG", raising=False)
    return folder


def zoo(name="zoo", **more):
    program, *args = command("good")
    table = {"command": program, "args": args, **more}
    return "\n".join((f"[servers.{name}]", *(f"{key} = {json.dumps(table[key])}" for key in table)))


def say(path, *parts):
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(parts) + "\n")
    fresh.replace(path)
    trust(path.parent)


async def called(**options):
    async with open_hub(**options) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        result = await hub.call("zoo_echo", {"text": "hello"})
        return result.text, set(hub.links)


async def test_the_users_and_the_projects_file_are_read(folder, tmp_path):
    say(tmp_path / "config" / "multitap" / "multitap.toml", zoo())
    say(folder / "multitap.toml", zoo("other", start="lazy"))

    assert await called() == ("hello", {"zoo", "other"})


def test_it_does_so_under_plain_asyncio(folder):
    say(folder / "multitap.toml", zoo())

    assert asyncio.run(called()) == ("hello", {"zoo"})


async def test_the_variable_names_the_file(folder, tmp_path, monkeypatch):
    say(folder / "multitap.toml", zoo("ignored"))
    program, *args = command("good")
    other = tmp_path / "mcp.json"
    other.write_text(json.dumps({"mcpServers": {"zoo": {"command": program, "args": args}}}))
    monkeypatch.setenv("MULTITAP_CONFIG", str(other))

    assert await called() == ("hello", {"zoo"})


def test_code_that_does_not_await_gets_the_same(folder):
    say(folder / "multitap.toml", zoo())
    with SyncHub() as hub:
        hub.settled()

        assert hub.call("zoo_echo", {"text": "hello"}).text == "hello"


async def test_settings_stand_alone(folder):
    say(folder / "multitap.toml", zoo())
    async with open_hub(Settings()) as hub:
        assert not hub.links


async def test_the_files_are_followed(folder):
    say(folder / "multitap.toml", zoo())
    async with open_hub() as hub:
        with hub.events.subscribe(calls=False) as events, anyio.fail_after(PATIENCE):
            await hub.settled()
            say(folder / "multitap.toml", zoo(), zoo("more"))
            while not isinstance(await anext(events), Reloaded):
                pass
            await hub.settled()

        assert {name: link.state for name, link in hub.links.items()} == {
            "zoo": LinkState.CONNECTED,
            "more": LinkState.CONNECTED,
        }


async def test_an_unset_variable_is_reported_with_its_place(folder):
    say(folder / "multitap.toml", zoo(), 'env = { TOKEN = "${NO_SUCH_TOKEN}" }')
    async with open_hub() as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()

        assert f"{folder / 'multitap.toml'}:4:" in str(hub.links["zoo"].failure)
        assert "NO_SUCH_TOKEN" in str(hub.links["zoo"].failure)


@pytest.mark.parametrize("opened", ["async", "sync"])
def test_a_file_that_cannot_be_read_is_raised_with_its_place(folder, opened):
    say(folder / "multitap.toml", "[servers.zoo", "")

    with pytest.raises(ConfigError, match=r"multitap\.toml:1:\d+: not valid TOML"):
        asyncio.run(called()) if opened == "async" else SyncHub().__enter__()


async def test_a_named_file_that_is_missing_is_raised(folder, monkeypatch):
    monkeypatch.setenv("MULTITAP_CONFIG", "nowhere.toml")
    with pytest.raises(ConfigError, match=r"nowhere\.toml: there is no such file"):
        await called()


async def test_an_entry_that_cannot_be_used_is_logged_and_costs_only_itself(folder, caplog):
    say(folder / "multitap.toml", zoo(), "[servers.bad]", 'comand = "x"')

    assert await called() == ("hello", {"zoo"})
    told = [record.message for record in caplog.records if record.name == "multitap.hub.reload"]
    assert "multitap.toml:4:10: error: `servers.bad`: neither `command` nor `url`" in told[-1]
    assert told[-1].endswith("hint: did you mean `command` instead of `comand`?")


def stranger(folder, *names):
    """A project that nobody has trusted."""
    (folder / "multitap.toml").write_text("\n".join(map(zoo, names)))
    return rf"of {re.escape(str(folder))} are not trusted and not used: run `multitap trust`"


async def test_a_program_is_warned_of_an_untrusted_project_once_where_it_opens_the_hub(folder):
    words = stranger(folder, "a", "b")

    async def call_in_vain():
        async with open_hub() as hub:
            with pytest.raises(UnknownName, match="no tool named") as missing:
                await hub.call("a_echo", {"text": "hello"})
        return missing.value.hint

    with pytest.warns(UntrustedWarning, match=f"^2 servers {words}$") as caught:
        hint = await call_in_vain()
    await call_in_vain()  # here, a second warning would be an error

    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    assert re.search(words, hint)


def test_code_that_does_not_await_is_warned_where_it_opens_the_hub(folder):
    words = stranger(folder, "a", "b")
    with pytest.warns(UntrustedWarning, match=words) as caught, SyncHub() as hub:
        assert not hub.snapshot().servers

    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]


def test_a_program_that_takes_warnings_for_errors_keeps_no_thread(folder):
    stranger(folder, "a", "b")

    with pytest.raises(UntrustedWarning), SyncHub():
        pass


async def test_an_environment_warns_and_its_tools_say_what_is_missing(folder):
    words = stranger(folder, "a", "b")

    async def call_in_vain():
        async with ConfiguredEnvironment.load() as environment:
            narrowed = environment.registry.narrowed(lambda _: True)
            return [
                await registry.execute("a_echo", {"text": "hello"})
                for registry in (environment.registry, narrowed)
            ]

    with pytest.warns(UntrustedWarning, match=words) as caught:
        missing, hidden = await call_in_vain()

    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    assert re.search(words, missing.error)
    assert missing.error == hidden.error


async def test_what_changed_since_it_was_trusted_is_counted_apart(folder):
    say(folder / "multitap.toml", zoo())
    (folder / "multitap.toml").write_text("\n".join((zoo(timeout=1), zoo("new"))))

    with pytest.warns(UntrustedWarning, match="1 server .* changed .*; 1 server .* is not trusted"):
        async with open_hub():
            pass


async def test_another_task_may_leave_a_hub_than_the_one_that_entered_it(folder):
    """As fixtures and notebooks do."""
    say(folder / "multitap.toml", zoo())
    opened = open_hub()
    seen = []

    async def enter():
        seen.append(await opened.__aenter__())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enter)
    (hub,) = seen
    with anyio.fail_after(PATIENCE):
        await hub.settled()
        result = await hub.call("zoo_echo", {"text": "hello"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(opened.__aexit__, None, None, None)

    assert result.text == "hello"
    with pytest.raises(HubClosed):
        await hub.call("zoo_echo", {"text": "hello"})


PROGRAM, *ARGUMENTS = command("good")
SERVER = {"command": PROGRAM, "args": ARGUMENTS}


@pytest.mark.parametrize(
    "source",
    [
        {"mcpServers": {"calc": SERVER}},
        {"servers": {"calc": SERVER}},
        {"servers": {"calc": StdioServer(command=PROGRAM, args=ARGUMENTS)}},
        {"calc": SERVER},
        {"mcp": {"calc": {"type": "local", "command": command("good")}}},
    ],
    ids=["clients", "ours", "models", "bare", "opencode"],
)
async def test_a_hub_opens_from_a_mapping(source, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async with open_hub(source) as hub:
        await hub.settled()

        assert (await hub.call("calc_add", {"a": 1, "b": 2}, timeout=20)).text == "3"


@pytest.mark.parametrize("kind", [str, Path])
async def test_a_hub_opens_from_a_file(kind, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"calc": SERVER}}))

    async with open_hub(kind(tmp_path / "mcp.json")) as hub:
        assert [*hub.links] == ["calc"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"servers": {"a": {"comand": "x"}}}, "`servers.a.comand`: is not a setting here"),
        ({"mcpServers": {"a": {"command": 3}}}, "`mcpServers.a.command`: expected a string"),
        ({"mcpServrs": {}}, "`mcpServrs`: is not a setting here"),
        ({"servers": {"a": {"command": "x", "args": "y"}}}, "`servers.a.args`: expected a list"),
    ],
)
async def test_what_is_wrong_with_a_mapping_is_named_by_its_key(source, message):
    with pytest.raises(ConfigError) as caught:
        async with open_hub(source):
            pass

    assert str(caught.value).startswith(message)


async def test_a_call_has_a_timeout_of_its_own(tmp_path):
    program, *args = command("good")
    settings = Settings(
        servers={"zoo": StdioServer(command=program, args=args)}, state_dir=tmp_path
    )
    async with open_hub(settings) as hub:
        await hub.settled()

        with pytest.raises(CallTimeout, match=r"within 0\.1 s"):
            await hub.call("zoo_sleep", {"seconds": 30}, timeout=0.1)


async def test_what_cannot_name_servers_is_refused_in_plain_words():
    with pytest.raises(TypeError, match="a path, a mapping or Settings, not list"):
        async with open_hub(["mcp.json"]):
            pass
