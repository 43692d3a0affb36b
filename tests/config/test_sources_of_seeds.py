"""Files of other designs in the folder that is worked in."""

import json

import pytest
from msgspec.structs import replace

from multitap.config import Surroundings, load
from multitap.config.problems import Severity
from multitap.config.sources import at_prompt, host_files
from multitap.names import Naming
from tests.trusting import Gullible

SERVER = {"transport": "stdio", "command": "true", "args": []}
FILES = {
    ".kode.json": {"mcpServers": {"one": {"command": "true", "args": []}}},
    "environments/work/config.jsonc": {"mcp": {"one": {"type": "local", "command": ["true"]}}},
    "mcp.json": {"mcpServers": {"one": SERVER}},
}
OTTER = '[mcp.servers.one]\ncommand = "true"\n'


@pytest.fixture
def where(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return Surroundings(folder, tmp_path / "home", tmp_path / "config" / "multitap", {})


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("name", "title", "naming"),
    [
        (".kode.json", "kode", Naming.KODE),
        ("environments/work/config.jsonc", "agent-core", Naming.SERVER_TOOL),
        ("mcp.json", "ExcelManus", Naming.EXCELMANUS),
    ],
)
def test_the_file_of_a_design_brings_its_search_and_naming(where, name, title, naming):
    put(where.folder / name, FILES[name])

    search, found = at_prompt(where)
    loaded = load(search, approval=Gullible())

    assert [(one.path, one.title) for one in found] == [(where.folder / name, title)]
    assert [*loaded.settings.servers] == ["one"]
    assert loaded.settings.naming is naming
    assert loaded.settings.servers["one"].provenance == "project"


def test_an_mcp_json_of_other_clients_needs_no_transport_and_renames_nothing(where):
    put(where.folder / "mcp.json", {"mcpServers": {"one": {"command": "true", "args": []}}})

    search, seeds = at_prompt(where)
    loaded = load(search, approval=Gullible())

    assert [seed.title for seed in seeds] == ["Claude Desktop"]
    assert not loaded.errors
    assert loaded.settings.servers["one"].provenance == "project"
    assert loaded.settings.naming is Naming.SERVER_TOOL
    assert [source.dialect for source in host_files(where)] == ["claude"]


def test_a_server_that_says_transport_does_not_cost_those_that_do_not(where):
    servers = {"one": SERVER, "two": {"command": "true"}, "three": {"url": "https://x"}, "four": 5}
    put(where.folder / "mcp.json", {"mcpServers": servers})

    search, seeds = at_prompt(where)
    loaded = load(search, approval=Gullible())

    assert [seed.title for seed in seeds] == ["ExcelManus"]
    assert {*loaded.settings.servers} == {"one", "two", "three"}
    assert [problem.server for problem in loaded.errors] == ["four"]
    assert [source.dialect for source in host_files(where)] == ["claude"]


def test_otters_file_is_found_too(where):
    put(where.folder / "otter.toml", OTTER)

    _, found = at_prompt(where)

    assert [one.title for one in found] == ["otter"]


def test_a_folder_of_ours_is_ours(where):
    put(where.folder / "mcp.json", FILES["mcp.json"])
    put(where.folder / "multitap.toml", '[servers.ours]\ncommand = "true"\n')

    search, found = at_prompt(where)

    assert found == ()
    assert [*load(search, approval=Gullible()).settings.servers] == ["ours"]


def test_a_named_file_stands_alone(where, tmp_path):
    put(where.folder / "mcp.json", FILES["mcp.json"])
    put(tmp_path / "x.json", {"mcpServers": {"other": SERVER}})

    search, found = at_prompt(where, (tmp_path / "x.json",))

    assert found == ()
    assert [*load(search, approval=Gullible()).settings.servers] == ["other"]


def test_the_users_own_servers_stay_and_trusted(where):
    put(where.config / "multitap.toml", '[servers.mine]\ncommand = "true"\n')
    put(where.folder / "mcp.json", FILES["mcp.json"])

    loaded = load(at_prompt(where)[0], approval=Gullible())

    assert {*loaded.settings.servers} == {"mine", "one"}
    assert loaded.settings.servers["one"].provenance == "project"


def test_the_first_file_counts_as_in_that_design(where):
    put(where.folder / "mcp.json", FILES["mcp.json"])
    put(where.home / ".excelmanus" / "mcp.json", {"mcpServers": {"users": SERVER}})

    assert [*load(at_prompt(where)[0], approval=Gullible()).settings.servers] == ["one"]


def test_of_several_files_one_is_read(where):
    for name, content in FILES.items():
        put(where.folder / name, content)

    _, found = at_prompt(where)

    assert [one.title for one in found] == ["kode", "agent-core", "ExcelManus"]


@pytest.mark.parametrize(
    ("names", "found"),
    [(("a", "b"), []), (("a", "default"), ["agent-core"]), (("a",), ["agent-core"])],
)
def test_of_several_environments_only_the_usual_one_is_clear(where, names, found):
    for name in names:
        put(where.folder / "environments" / name / "config.jsonc", {"mcp": {}})

    assert [one.title for one in at_prompt(where)[1]] == found


def test_kodes_file_of_the_user_counts_in_every_folder_without_ours(where):
    put(where.home / ".kode.json", FILES[".kode.json"])
    search, found = at_prompt(where)
    loaded = load(search)
    put(where.config / "multitap.toml", "")
    _, beside_ours = at_prompt(where)

    assert [file.path for file in found] == [where.home / ".kode.json"]
    assert loaded.settings.naming is Naming.KODE
    assert loaded.settings.servers["one"].provenance == "user"
    assert beside_ours == ()


@pytest.mark.parametrize(("name", "dialect"), [(".kode.json", None), ("other.json", "kode")])
def test_a_named_file_of_kode_brings_its_naming(where, name, dialect):
    path = where.folder / name
    put(path, FILES[".kode.json"])
    search, _ = at_prompt(where, (path,), dialect=dialect)

    assert load(search).settings.naming is Naming.KODE


def test_the_users_own_environments_are_not_a_strangers_project(where):
    own = where.home / ".config" / "tong_work" / "agent-core"
    put(own / "environments/work/config.jsonc", FILES["environments/work/config.jsonc"])
    search, _ = at_prompt(replace(where, folder=own))

    assert load(search).settings.servers["one"].provenance == "user"


def test_what_an_environment_file_says_in_vain_is_reported(where):
    name = "environments/work/config.jsonc"
    put(where.folder / name, {**FILES[name], "environment": {"A": "1"}})
    search, _ = at_prompt(where)

    (problem,) = load(search, approval=Gullible()).problems
    assert (problem.key, problem.severity) == ("environment", Severity.WARNING)
