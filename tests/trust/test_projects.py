"""What is trusted, by content; and what of a change is noticed."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from multitap.config import HttpServer, StdioServer, Surroundings, kode, load, native
from multitap.config.models import SandboxRules
from multitap.config.projects import TrustState
from multitap.errors import UnknownName
from multitap.sandbox.learning import LearnedRules
from multitap.trust.project_parts import quote_word, server_part
from multitap.trust.project_review import review
from multitap.trust.projects import Projects, ProjectsError, expand_trusted, load_trusted
from tests.trusting import trust

ROOT = Path("/nowhere/project")
TEXT = st.text(
    st.characters(blacklist_characters="\0\r\n", blacklist_categories=["Cs"]), min_size=1
)
WORD = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)
PROGRAMS = st.builds(
    StdioServer,
    command=TEXT,
    args=st.lists(TEXT, max_size=3).map(tuple),
    env=st.dictionaries(WORD, TEXT, max_size=3),
    cwd=st.none() | st.just(ROOT) | st.just(ROOT / "x"),
    start=st.sampled_from(["eager", "lazy"]),
)
SITES = st.builds(
    HttpServer,
    url=WORD.map(lambda word: f"https://{word.lower()}.example/mcp"),
    headers=st.dictionaries(WORD, TEXT, max_size=3),
)


@pytest.fixture(autouse=True)
def project(own_project):
    return own_project


def digest(config):
    return server_part("a", config, ROOT, ROOT).digest


@given(PROGRAMS | SITES, PROGRAMS | SITES)
def test_any_difference_between_two_servers_is_a_difference_of_their_digests(one, other):
    assume(one != other)

    assert digest(one) != digest(other)
    assert digest(one) == digest(one.replace(provenance="project"))
    assert server_part("b", one, ROOT, ROOT).digest != digest(one)


@given(TEXT)
def test_a_word_of_a_command_is_shown_so_that_nothing_in_it_hides(word):
    shown = quote_word(word)

    assert shown.isprintable()
    assert " " not in shown or shown.startswith('"')


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("server.py", "command = 'python'\nargs = ['server.py']"),
        ("sub/run.sh", "command = './sub/run.sh'"),
        ("hook.js", "command = 'node'\nenv = { NODE_OPTIONS = '--require ./hook.js' }"),
        ("values.env", "command = 'x'\nenv_file = 'values.env'"),
        ("token.txt", "url = 'http://x.example/'\nheaders = { A = '${file:token.txt}' }"),
        ("package.json", "command = 'npx'\nargs = ['-y', 'thing']"),
        (".npmrc", "command = 'npx'\nargs = ['-y', 'thing']"),
        ("thing.py", "command = 'python'\nargs = ['-m', 'thing']"),
        ("node_modules/.bin/thing", "command = 'npx'\nargs = ['thing']"),
        ("conf.json", "command = 'x'\nargs = ['--config=conf.json']"),
    ],
)
def test_a_file_that_decides_what_runs_counts_too(project, name, keys):
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (project / "multitap.toml").write_text(
        f"[servers.a]\n{keys}\n[servers.b]\nurl = 'https://b.example'\n"
    )
    path.write_text("1")
    trust(project)
    before = load_trusted()
    path.write_text("2")
    after = load_trusted()

    assert before.settings.servers.keys() == {"a", "b"}
    assert after.settings.servers.keys() == {"b"}
    assert after.held["a"].standing is TrustState.CHANGED


def test_a_skill_a_prompt_and_a_function_count_and_a_change_asks_again(project):
    skill = project / "skills" / "cook"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: cook\ndescription: Cooks.\n---\n")
    (skill / "run.sh").write_text("true")
    (project / "f.py").write_text("def f() -> int:\n    return 1\n")
    (project / "p.md").write_text("hello")
    (project / "multitap.toml").write_text(
        "[environment]\ntools = ['f.py:f']\n[prompts.p]\nfile = 'p.md'\n"
    )
    untrusted = load_trusted()
    trust(project)
    trusted = load_trusted()
    (skill / "run.sh").write_text("rm -rf /")
    (project / "f.py").write_text("import evil")
    changed = load_trusted()

    assert {(one.kind, one.standing) for one in untrusted.pending} == {
        ("settings", TrustState.NEW),
        ("skill", TrustState.NEW),
    }
    assert (trusted.pending, trusted.settings.prompts["p"].text) == ((), "hello")
    assert {(one.kind, one.standing) for one in changed.pending} == {
        ("settings", TrustState.CHANGED),
        ("skill", TrustState.CHANGED),
    }
    assert not changed.approval.accepts_skill(project, skill)


@pytest.mark.parametrize(
    "word", ["a" * 5000, "a/b" * 2000, "a." * 2000, "-", "\x01", "~nobody/x", "."]
)
def test_words_that_name_no_file_are_only_words(project, word):
    config = StdioServer(
        command="./" + word, args=(word, f"--x={word}", "-m", word), env={"A": word}
    )
    site = HttpServer(url="http://x.example/", headers={"TOKEN": word})

    assert server_part("a", config, project, project).lines[0].isprintable()
    assert server_part("a", site, project, project).digest


def test_a_change_asks_for_that_part_only_and_shows_the_difference(project):
    file = project / "multitap.toml"
    file.write_text("[servers.a]\ncommand = 'one'\n[servers.b]\ncommand = 'b'\n")
    trust(project)
    file.write_text("[servers.a]\ncommand = 'two'\n[servers.b]\ncommand = 'b'\n")
    [found], _ = review(project, Projects())

    assert [one.part.name for one in found.news] == ["a"]
    assert [*found.news[0].lines()][:4] == [
        "server a (multitap.toml): changed",
        "  - runs      one",
        "  + runs      two",
        "    in        the project's folder",
    ]


def test_no_number_of_files_hides_the_rest_of_a_change(project):
    file = project / "multitap.toml"
    scripts = [f"{number}.py" for number in range(30)]
    for script in scripts:
        (project / script).write_text("pass")
    file.write_text(f"[servers.a]\ncommand = 'python3'\nargs = {scripts}\n")
    trust(project)
    (project / "x").mkdir()
    for script in scripts:
        (project / script).unlink()
    file.write_text("[servers.a]\ncommand = 'evil'\ncwd = 'x'\nsandbox = 'strict'\n")
    [found], _ = review(project, Projects())

    assert "  + runs      evil" in [*found.lines()]


def test_a_level_and_rules_that_stay_are_shown(project, tmp_path):
    file = project / "multitap.toml"
    file.write_text("[servers.a]\ncommand = 'python3'\nargs = ['one.py']\n")
    trust(project)
    Projects().set_level(project, "a", "off")
    Projects().allow(project, "a", LearnedRules(write=(str(tmp_path),)))
    file.write_text("[servers.a]\ncommand = 'python3'\nargs = ['two.py']\n")
    [found], _ = review(project, Projects())

    shown = [*found.lines()]
    assert "  + level     off: it may do everything that you may; you chose it" in shown
    assert f"  + may write {tmp_path} (you added it)" in shown


def test_what_is_trusted_for_a_run_is_what_was_there_first(project):
    file = project / "multitap.toml"
    file.write_text("[servers.a]\ncommand = 'one'\n")
    projects = Projects(trust_now=True)
    first = load_trusted(projects=projects)
    file.write_text("[servers.a]\ncommand = 'two'\n[servers.b]\ncommand = 'b'\n")
    second = load_trusted(projects=projects)

    assert first.settings.servers.keys() == {"a"}
    assert (second.settings.servers, second.held.keys()) == ({}, {"a", "b"})
    assert Projects().trusted() == {}


def test_the_record_is_the_users_alone_and_not_in_the_project(project, tmp_path):
    (project / "multitap.toml").write_text("[servers.a]\ncommand = 'one'\n")
    before = sorted(project.rglob("*"))
    trust(project)
    [file] = Projects().files

    assert file.is_relative_to(tmp_path / "state")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize("harm", [lambda one: one.chmod(0o666), lambda one: one.write_text("{")])
def test_a_record_that_others_can_write_or_that_is_damaged_trusts_nothing(project, harm):
    (project / "multitap.toml").write_text("[servers.a]\ncommand = 'one'\n")
    trust(project)
    harm(Projects().files[0])

    assert load_trusted().held.keys() == {"a"}
    with pytest.raises(ProjectsError):
        Projects().trusted()


def test_trust_can_be_taken_back(project):
    (project / "multitap.toml").write_text("[servers.a]\ncommand = 'one'\n")
    trust(project)
    Projects().distrust(project)

    assert load_trusted().held.keys() == {"a"}
    with pytest.raises(UnknownName, match="is not trusted"):
        Projects().distrust(project)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ("cwd = '/etc'", "servers.a.cwd"),
        ("cwd = '..'", "servers.a.cwd"),
        ("cwd = '${OUT}'", "servers.a.cwd"),
        ("env_file = 'link'", "servers.a.env_file"),
        ("args = ['${file:~/.ssh/id_rsa}']", "servers.a.args"),
        ("env = { A = '${file:link}' }", "servers.a.env.A"),
    ],
)
def test_s2_a_projects_server_names_no_file_outside_the_project(project, keys, key):
    (project / "link").symlink_to("/etc/passwd")
    (project / "multitap.toml").write_text(f"[servers.a]\ncommand = 'x'\n{keys}\n")
    trust(project)
    loaded = load_trusted()

    assert [problem.key for problem in loaded.errors] == [key]
    assert (loaded.settings.servers, loaded.held) == ({}, {})


def test_s3_a_trusted_project_widens_nothing_that_the_user_defined(project, tmp_path):
    own = tmp_path / "config" / "multitap" / "multitap.toml"
    own.parent.mkdir(parents=True)
    own.write_text(
        "[servers.a]\ncommand = 'a'\nfilter = { deny = ['x'] }\n[profiles.p]\nservers = ['a']\n"
        "[agents.g]\nallow = ['a']\n[prompts.q]\ntext = 'mine'\n[environment]\nid = 'me'\n"
    )
    (project / "multitap.toml").write_text(
        "naming = 'bare'\nenabled = false\n[servers.a]\nfilter = { deny = [] }\n"
        "[profiles.p]\nservers = ['*']\n[profiles.new]\nservers = ['a']\n"
        "[agents.g]\nallow = ['*']\n[prompts.q]\ntext = 'theirs'\n"
        "[environment]\nid = 'them'\ninvoke_llm = true\n"
    )
    trust(project)
    alone = load(native(Surroundings.here(tmp_path))).settings
    both = load_trusted()

    assert both.settings.profiles.keys() == {"p", "new"}
    for field in ("servers", "agents", "prompts", "environment", "naming"):
        assert getattr(both.settings, field) == getattr(alone, field)
    assert both.settings.profiles["p"] == alone.profiles["p"]
    assert {problem.key for problem in both.problems} == {
        "naming",
        "environment.invoke_llm",
        "profiles.p.servers",
        "agents.g.allow",
        "prompts.q.text",
        "environment.id",
        "servers.a",
    }


def test_a_file_that_is_named_needs_no_trust(project):
    (project / "mine.toml").write_text("naming = 'bare'\n[servers.a]\ncommand = 'x'\ncwd = '/'\n")

    loaded = load_trusted(native(Surroundings.here(), [Path("mine.toml")]))

    assert (loaded.problems, loaded.pending) == ((), ())
    assert loaded.settings.servers["a"].provenance == "user"
    assert os.fspath(loaded.settings.servers["a"].cwd) == "/"


@pytest.fixture
def documents(tmp_path):
    folder = tmp_path / "home" / "documents"
    folder.mkdir(parents=True)
    return folder


def start(name="a"):
    loaded = load_trusted()
    return expand_trusted(loaded, name, loaded.settings.servers[name])


def test_a_folder_that_was_shown_is_writable_until_its_name_leads_elsewhere(project, documents):
    other = documents.with_name("other")
    other.mkdir()
    link = documents.with_name("link")
    link.symlink_to(documents)
    (project / "multitap.toml").write_text(
        f"[servers.a]\ncommand = 'npx'\nargs = ['-y', 'server', '{link}', '/', '${{HOME}}']\n"
    )
    [reviewed] = review(project, Projects())[0][0].parts
    trust(project)
    before = start().home
    link.unlink()
    link.symlink_to(other)

    assert f"may write {documents}" in reviewed.part.lines
    assert before.writes == (str(documents),)
    assert start().home.writes == ()


def test_a_folder_that_appears_later_waits_for_the_next_review(project, documents):
    later = documents / "later"
    (project / "multitap.toml").write_text(f"[servers.a]\ncommand = 'x'\nargs = ['{later}']\n")
    trust(project)
    later.mkdir()
    [found], _ = review(project, Projects())

    assert start().home.writes == ()
    assert [one.new_folders for one in found.news] == [(str(later),)]
    trust(project)
    assert start().home.writes == (str(later),)


def test_what_is_trusted_for_a_run_writes_to_no_folder_that_nobody_saw(project, documents):
    (project / "multitap.toml").write_text(f"[servers.a]\ncommand = 'x'\nargs = ['{documents}']\n")
    loaded = load_trusted(projects=Projects(trust_now=True))

    assert expand_trusted(loaded, "a", loaded.settings.servers["a"]).home.writes == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "enabled = false"),
        ("", "sandbox = 'strict'"),
        ("sandbox = 'strict'", "sandbox = 'bubblewrap'"),
        (
            "sandbox_rules = { hosts = ['a.b', 'c.d'], read = ['x'] }",
            "sandbox_rules = { hosts = ['c.d'] }",
        ),
        ("sandbox_rules = { proc = true }", ""),
        ("", "limits = { tools = 5 }"),
        ("", "sandbox_rules = { processes = 3 }"),
    ],
)
def test_less_needs_no_new_question_and_more_does(project, before, after):
    file = project / "multitap.toml"
    file.write_text(f"[servers.a]\ncommand = 'x'\n{before}\n")
    trust(project)
    file.write_text(f"[servers.a]\ncommand = 'x'\n{after}\n")
    narrower = load_trusted()
    Projects().distrust(project)
    trust(project)
    file.write_text(f"[servers.a]\ncommand = 'x'\n{before}\n")
    wider = load_trusted()

    assert (narrower.settings.servers.keys(), narrower.pending) == ({"a"}, ())
    assert wider.held["a"].standing is TrustState.CHANGED


def test_rules_that_a_person_added_stay_until_the_program_changes(project, documents):
    file = project / ".kode.json"
    entry = '{"mcpServers": {"a": {"command": "npx", "args": ["-y", "%s", "%s"]}}}'
    file.write_text(entry % ("one", "1"))
    trust(project)
    learned = LearnedRules(read=(str(documents),), hosts=("a.example",), proc=True)
    Projects().allow(project, "a", learned)
    search = kode(Surroundings.here())

    def rules():
        loaded = load_trusted(search)
        return expand_trusted(loaded, "a", loaded.settings.servers["a"]).sandbox_rules

    first = rules()
    file.write_text(entry % ("one", "2"))
    trust(project)
    other_arguments = rules()
    file.write_text(entry % ("two", "2"))
    trust(project)

    assert (
        first == other_arguments == SandboxRules(read=(documents,), hosts=("a.example",), proc=True)
    )
    assert rules() == SandboxRules()


def test_a_rule_whose_path_leads_elsewhere_by_now_opens_nothing(project, documents):
    (project / "multitap.toml").write_text("[servers.a]\ncommand = 'x'\n")
    trust(project)
    Projects().allow(project, "a", LearnedRules(read=(str(documents),)))
    documents.rename(documents.with_name("moved"))
    documents.symlink_to("/etc")

    assert start().sandbox_rules.read == ()


def test_rules_are_added_only_to_what_is_trusted(project):
    with pytest.raises(UnknownName, match="is not trusted"):
        Projects().allow(project, "a", LearnedRules())


def test_a_server_has_an_identity_until_its_program_changes_or_its_trust_ends(project):
    file = project / "multitap.toml"

    def identity(command):
        file.write_text(f"[servers.a]\ncommand = '{command}'\n")
        trust(project)
        return start().home.identity

    first, again, other = identity("x"), identity("x"), identity("y")
    Projects().distrust(project)
    fresh = identity("y")

    assert first == again
    assert len({first, other, fresh, ""}) == 4
