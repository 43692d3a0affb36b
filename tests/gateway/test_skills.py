"""Skills of several servers as those of one, with equal addresses and names."""

import hashlib
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from multitap import Settings
from multitap.catalog.addresses import rename
from multitap.config import StdioServer
from multitap.gateway.skills import SKILLS
from tests.gateway import plain_client
from tests.gateway.starting import starting
from tests.gateway.talking import gate

PROGRAM = str(Path(__file__).with_name("skill_server.py"))
eras = pytest.mark.parametrize("era", ["old", "new"])


@asynccontextmanager
async def opened(tmp_path, era, *, gateway=gate, **servers):
    """A client of servers that are given as their eras."""
    programs = {
        name: StdioServer(command=sys.executable, args=(PROGRAM, its_era, name))
        for name, its_era in servers.items()
    }
    settings = Settings(state_dir=tmp_path / "state", servers=programs)
    async with (
        gateway(settings) as there,
        plain_client.on_http(era, there.url) as client,
    ):
        client.said = await client.begin()
        yield client


def by_server(skills):
    return {skill["_meta"]["multitap/server"]: skill for skill in skills}


@eras
async def test_skills_of_equal_addresses_and_names_are_kept_apart(tmp_path, era):
    async with opened(tmp_path, era, alpha="new", beta="new", gamma="old") as client:
        answer = await client.result("skills/list")
        skills = by_server(answer["skills"])
        again = {
            name: (await client.result("skills/get", uri=skill["uri"]))["skill"]
            for name, skill in skills.items()
        }

    assert client.said["capabilities"]["extensions"][SKILLS] == {"directoryRead": True}
    assert skills.keys() == {"alpha", "beta", "gamma"}
    assert len({skill["uri"] for skill in skills.values()}) == 3
    assert again == skills
    for name, skill in skills.items():
        assert skill["uri"].endswith("/refunds/SKILL.md")
        assert skill["frontmatter"] == {
            "name": "refunds",
            "description": f"how {name} refunds",
            "license": "MIT",
        }
    if era == "new":
        assert (answer["ttlMs"], answer["cacheScope"]) == (0, "private")  # gamma promises nothing


@eras
async def test_skills_are_listed_and_read_while_their_servers_start(tmp_path, era):
    address = rename("alpha", "skill://refunds/SKILL.md")
    folder = address.removesuffix("/SKILL.md")
    async with opened(tmp_path, era, gateway=starting, alpha="new", gamma="old") as client:
        found = {}

        async def ask(method, **params):
            found[method] = await client.result(method, **params)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(ask, "skills/get", uri=address))
            tasks.start_soon(partial(ask, "resources/directory/read", uri=folder))
            tasks.start_soon(ask, "skills/list")

    assert by_server(found["skills/list"]["skills"]).keys() == {"alpha", "gamma"}
    assert found["skills/get"]["skill"]["uri"] == address
    assert len(found["resources/directory/read"]["resources"]) == 2


async def test_a_list_that_is_given_again_does_not_become_fresher(tmp_path):
    async with opened(tmp_path, "new", alpha="new") as client:
        first, second = [(await client.result("skills/list"))["ttlMs"] for _ in range(2)]

    assert 0 < second < first == 5000


@eras
async def test_digests_are_those_of_what_is_read(tmp_path, era):
    async with opened(tmp_path, era, alpha="new", beta="new") as client:
        skills = by_server((await client.result("skills/list"))["skills"])
        for name, skill in skills.items():
            for file in skill["resources"]:
                (content,) = (await client.result("resources/read", uri=file["uri"]))["contents"]
                data = content["text"].encode()

                assert name in content["text"]
                assert content["uri"] == file["uri"]
                assert file["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
                assert file["size"] == len(data)


@eras
async def test_folders_are_read_at_servers_with_and_without_the_extension(tmp_path, era):
    async with opened(tmp_path, era, alpha="new", gamma="old") as client:
        skills = by_server((await client.result("skills/list"))["skills"])
        listed = {}
        for name, skill in skills.items():
            folder = skill["uri"].removesuffix("/SKILL.md")
            answer = await client.result("resources/directory/read", uri=folder)
            listed[name] = {child["uri"].removeprefix(folder) for child in answer["resources"]}
            if name == "gamma":
                (docs,) = (one for one in answer["resources"] if one["uri"].endswith("docs"))
                below = await client.result("resources/directory/read", uri=docs["uri"])
        refused = await client.request("resources/directory/read", uri=skills["gamma"]["uri"])

    assert listed == {"alpha": {"/docs", "/SKILL.md"}, "gamma": {"/docs", "/SKILL.md"}}
    assert docs["mimeType"] == "inode/directory"
    assert [one["uri"] for one in below["resources"]] == [f"{docs['uri']}/rules.md"]
    assert refused["error"]["code"] == -32602


async def test_an_unknown_skill_is_refused(tmp_path):
    async with opened(tmp_path, "new", alpha="new", gamma="old") as client:
        codes = [
            (await client.request("skills/get", uri=uri))["error"]["code"]
            for uri in ("skill://nobody/~/x/SKILL.md", "skill://gamma/~/x/SKILL.md")
        ]
        at_server = await client.request("skills/get", uri="skill://alpha/~/x/SKILL.md")

    assert codes == [-32602, -32602]
    assert "error" in at_server
