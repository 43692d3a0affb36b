"""Every policy and filter that a page shows protects what the page says it does."""

import re
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest
import tomlkit

from multitap import open_hub
from multitap.catalog.audience import Audience
from multitap.config import Search, Source, load
from multitap.errors import Denied, NotAllowed
from multitap.gateway.view import View
from multitap.identity.access_tokens import VerifiedToken
from multitap.identity.rights import rights_of
from multitap.names import Naming
from multitap.tools import HubTools

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(?:toml|json)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
RULES = re.compile(r"^\s*\[\[.*policy\]\]|\"policy\"|^\s*(?:allow|deny) = |_names = ", re.MULTILINE)

SERVER = f"""
import sys

sys.path.insert(0, {str(ROOT)!r})
from tests.zoo.honest import Honest
from tests.zoo.tools import DESTRUCTIVE, READ_ONLY, STRING, tool

OPTIONAL = {{**STRING, "default": ""}}

@tool("Does anything", DESTRUCTIVE, path=OPTIONAL, url=OPTIONAL)
def anything(_server, request, path="", url=""):
    request.text("done")

server = Honest({{}})
server.tools = {{}}
for name in sys.argv[1:]:
    kind, _, own = name.rpartition(":")
    hints = READ_ONLY if kind == "reads" else {{"readOnlyHint": False}}
    server.tools[own] = anything.renamed(own, annotations=hints)
server.main()
"""

SERVERS = {
    "config.md": {"calculator": ["add", "divide"]},
    "environment.md": {"files": ["read", "delete", "delete_folder"], "mail": ["read"]},
    "gateway.md": {
        "github": ["list_issues", "delete_repo"],
        "files": ["read_file", "tidy"],
        "mail": ["read_mail"],
    },
    "start-team.md": {
        "github": ["delete_repo", "list_issues", "get_issue", "search_code", "merge_pull"],
        "docs": ["search_pages", "batch_delete_pages"],
        "mail": ["list_mails", "delete_mail"],
    },
    "policy.md": {
        "files": ["reads:read_file", "write_file"],
        "web": ["reads:fetch", "reads:download_page", "reads:look_up"],
    },
    "filters.md": {
        "github": ["delete_repo", "list_issues", "create_issue", "merge_pull", "read_code"],
        "files": ["read_file", "list_files", "delete_file"],
        "mail": ["read_mail"],
    },
}
"""The servers that the examples of a page are about, with their tools."""


def examples():
    """Each example of each page, by the page and its number there."""
    for page in PAGES:
        texts = [text for _, text in BLOCK.findall(page.read_text()) if RULES.search(text)]
        for number, text in enumerate(texts):
            yield f"{page.name} {number}", text


EXAMPLES = dict(examples())


def hub_for(example, folder, *, naming=Naming.SERVER_TOOL):
    """A hub with the configuration of a page, and servers that fit it."""
    script = folder / "server.py"
    script.write_text(SERVER)
    tables = tomllib.loads(EXAMPLES[example])
    wanted = {key: tables[key] for key in ("policy", "profiles", "agents") if key in tables}
    servers = tables.get("servers", {})
    for server, tools in SERVERS[example.partition(" ")[0]].items():
        program = {"command": sys.executable, "args": ["-I", "-S", str(script), *tools]}
        servers[server] = {**servers.get(server, {}), **program}
    path = folder / "multitap.toml"
    path.write_text(tomlkit.dumps({"naming": naming.name.lower(), **wanted, "servers": servers}))
    loaded = load(Search((Source(path=path),), folder))
    assert not loaded.errors, loaded.errors
    return open_hub(loaded.settings.replace(state_dir=folder / "state"))


async def decide(hub, name, **arguments):
    """What becomes of a call."""
    try:
        await hub.call(name, arguments)
    except NotAllowed:
        return "hidden"
    except Denied as exc:
        return "ask" if exc.asks else "deny"
    return "allow"


def test_every_example_is_tried():
    assert [*EXAMPLES] == [
        "config.md 0",
        "cookbook.md 0",
        "environment.md 0",
        "filters.md 0",
        "filters.md 1",
        "gateway.md 0",
        "gateway.md 1",
        "policy.md 0",
        "start-team.md 0",
        "team.md 0",
        "team.md 1",
    ]


def test_the_access_rules_for_teams_give_each_group_its_tools(tmp_path):
    path = tmp_path / "multitap.toml"
    path.write_text("\n".join(map(dedent, (EXAMPLES["team.md 0"], EXAMPLES["team.md 1"]))))
    loaded = load(Search((Source(path=path),), tmp_path))
    assert not loaded.errors, loaded.errors

    def rights(*groups, scopes=()):
        token = VerifiedToken(
            provider="corp", issuer="https://login.example.com", subject="ada", client="editor",
            is_machine=False, scopes=frozenset(scopes), groups=frozenset(groups), claims={},
            expires=0, issued=0,
        )  # fmt: skip
        return rights_of(loaded.settings.access, token)

    developer, operator = rights("dev"), rights("ops")
    assert (developer.rules, operator.rules) == (("developers",), ("operators",))
    assert [grant.profile for grant in operator.grants] == ["production"]
    assert (developer.rate, operator.rate) == (None, "100/min")
    assert [grant.scopes for grant in developer.locked] == [("tools:write",)]
    assert rights("dev", scopes=["tools:write"]).rules == ("developers", "changes")
    assert rights("sales") is None


@pytest.mark.parametrize("naming", Naming)
async def test_the_rule_for_teams_denies_whatever_deletes(naming, tmp_path):
    async with hub_for("start-team.md 0", tmp_path, naming=naming) as hub:
        await hub.settled()
        names = {tool.raw_name for tool in hub.catalog.tools.values()}
        hidden = {tool.tool.raw_name: name for name, tool in hub.catalog.hidden.items()}

        assert hidden.keys() == {"delete_repo", "batch_delete_pages", "delete_mail"}
        assert not names & hidden.keys()
        for own, name in hidden.items():
            assert await decide(hub, name) == "hidden"
            with pytest.raises(LookupError):
                await hub.call(own, {})


async def test_the_profile_for_teams_only_reads_two_servers(tmp_path):
    async with hub_for("start-team.md 0", tmp_path) as hub:
        await hub.settled()

        assert seen_with(hub, "readonly") == {
            "github_list_issues",
            "github_get_issue",
            "github_search_code",
            "docs_search_pages",
        }


async def test_the_rules_of_the_page_on_policies_do_what_they_say(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    inside, outside = tmp_path / "home" / "work" / "x", tmp_path / "home" / ".ssh" / "id_rsa"
    async with hub_for("policy.md 0", tmp_path) as hub:
        await hub.settled()

        assert await decide(hub, "files_read_file", path=str(inside)) == "allow"
        assert await decide(hub, "files_write_file", path=str(inside)) == "ask"
        for tool in ("files_read_file", "files_write_file"):
            assert await decide(hub, tool, path=str(outside)) == "deny"
            assert await decide(hub, tool, path=f"{inside.parent}/../.ssh/id_rsa") == "deny"
        for tool in ("web_fetch", "web_download_page"):
            assert await decide(hub, tool, url="https://docs.example.com/a") == "allow"
            assert await decide(hub, tool, url="https://a.internal.example/a") == "allow"
            assert await decide(hub, tool, url="https://elsewhere.example/a") == "deny"
        assert await decide(hub, "web_look_up", url="https://elsewhere.example/a") == "allow"


async def test_the_filters_of_the_page_on_filters_show_what_they_say(tmp_path):
    async with hub_for("filters.md 0", tmp_path) as hub:
        await hub.settled()

        assert await decide(hub, "github_delete_repo") == "hidden"
        assert seen_with(hub, "readonly") == {
            "github_list_issues",
            "github_read_code",
            "files_list_files",
            "files_read_file",
        }
        assert {*HubTools(hub, agent="reviewer")} == {
            "github_list_issues",
            "github_create_issue",
            "github_read_code",
        }


async def test_the_page_on_configuration_hides_a_tool(tmp_path):
    async with hub_for("config.md 0", tmp_path) as hub:
        await hub.settled()

        assert await decide(hub, "calculator_divide") == "hidden"
        assert await decide(hub, "calculator_add") == "allow"


async def test_the_agent_of_the_page_on_environments_deletes_nothing(tmp_path):
    async with hub_for("environment.md 0", tmp_path) as hub:
        await hub.settled()

        assert [*HubTools(hub, agent="clerk")] == ["files_read"]


async def test_the_profiles_of_the_page_on_the_gateway_show_what_they_say(tmp_path):
    (tmp_path / "other").mkdir()
    async with hub_for("gateway.md 0", tmp_path) as hub:
        await hub.settled()

        assert seen_with(hub, "readonly") == {"github_list_issues", "files_read_file"}
    async with hub_for("gateway.md 1", tmp_path / "other") as hub:
        await hub.settled()

        assert {*hub.catalog.tools} - seen_with(hub, "coding") == {"github_delete_repo"}


async def test_a_tool_has_the_name_that_the_page_on_filters_gives_it(tmp_path):
    async with hub_for("filters.md 1", tmp_path) as hub:
        await hub.settled()

        assert await decide(hub, "github_new_issue") == "allow"
        assert hub.catalog.tools["github_new_issue"].description == "File a bug in our tracker"


def seen_with(hub, profile):
    """The tools that a client with a profile lists."""
    profiles = hub.settings.profiles
    return {*View(hub.catalog, Audience.of(profile).limits(profiles), profiles).tools}
