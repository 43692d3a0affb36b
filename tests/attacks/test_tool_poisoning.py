"""Descriptions and names that are written for the model, not for the person."""

import logging

import pytest

from multitap import Settings, open_hub
from multitap.config import StdioServer
from multitap.errors import NotAllowed
from tests.waiting import until
from tests.zoo.modes import command


def server(mode, **more):
    program, *args = command(mode)
    return StdioServer(command=program, args=args, **more)


def scans(hub, name="zoo"):
    return [line for line in hub.snapshot().server(name).warnings if line.startswith("scan: ")]


async def test_a_poisoned_description_is_reported_and_stays_by_default(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "multitap")
    settings = Settings(state_dir=tmp_path, servers={"zoo": server("poison")})
    async with open_hub(settings) as hub:
        await hub.settled()
        await hub.scanned()

        [line] = scans(hub)
        assert line.startswith("scan: tool 'echo': instructions: ")
        assert "zoo_echo" in hub.catalog.tools
    assert "instructions" in caplog.text


async def test_a_poisoned_description_is_never_shown_where_attacks_are_blocked(tmp_path):
    settings = Settings(state_dir=tmp_path, servers={"zoo": server("poison", scan="block")})
    async with open_hub(settings) as hub:
        await until(lambda: hub.catalog.tools)

        assert "zoo_echo" not in hub.catalog.tools
        assert "zoo_add" in hub.catalog.tools
        with pytest.raises(NotAllowed, match="looks like an attack: instructions"):
            await hub.call("zoo_echo", {"text": "x"})


async def test_names_that_look_like_others_are_reported(tmp_path):
    settings = Settings(state_dir=tmp_path, servers={"zoo": server("homoglyph")})
    async with open_hub(settings) as hub:
        await hub.settled()
        await hub.scanned()

        told = " ".join(scans(hub))
        assert told.count("look-alike name") + told.count("hidden text") >= 4
        assert all(name.isascii() for name in hub.catalog.tools)


async def test_escapes_in_descriptions_are_reported_with_visible_characters(tmp_path):
    settings = Settings(state_dir=tmp_path, servers={"zoo": server("ansi_escapes")})
    async with open_hub(settings) as hub:
        await hub.settled()
        await hub.scanned()

        for line in scans(hub):  # the tool, and the server's instructions
            assert "hidden text: " in line
            assert r"\u001b[2J" in line
            assert line.isprintable()
        assert len(scans(hub)) == 2


async def test_servers_whose_names_look_alike_are_reported(tmp_path):
    servers = {"github": server("good"), "g\u0456thub": server("good")}
    async with open_hub(Settings(state_dir=tmp_path, servers=servers)) as hub:
        await hub.settled()
        await hub.scanned()

        assert [line for line in scans(hub, "github") if "easily confused with" in line]


async def test_honest_servers_raise_no_alarm(tmp_path):
    settings = Settings(state_dir=tmp_path, servers={"zoo": server("good")})
    async with open_hub(settings) as hub:
        await hub.settled()
        await hub.scanned()

        assert hub.snapshot().server("zoo").warnings == ()
