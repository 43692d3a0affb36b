"""Rules that are derived from what a server was seen to use."""

import os

import pytest

from multitap.config import StdioServer
from multitap.sandbox.learning import LearnedRules, Traffic, host_rule, learn_rules
from multitap.sandbox.places import PrivatePaths
from multitap.sandbox.plan import plan_sandbox


@pytest.fixture
def home(tmp_path):
    folder = (tmp_path / "home").resolve()
    folder.mkdir()
    return folder


@pytest.fixture
def learn(tmp_path, home):
    """Learns from observed use, for a server that may use only what every server needs."""
    state = tmp_path / "state"
    plan = plan_sandbox(
        "files",
        StdioServer(command="/bin/cat"),
        "/bin/cat",
        {},
        level="strict",
        home=home,
        state=state,
        here=home,
        ours={},
    )
    private = PrivatePaths.of_user(home, state)

    def learn(*, read=(), changed=(), hosts=(), arguments=()):
        return learn_rules(
            plan,
            private,
            read=map(str, read),
            changed=map(str, changed),
            hosts=hosts,
            arguments=[*map(str, arguments)],
            home=home,
        )

    return learn


def files_in(folder, number):
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{index}.txt" for index in range(number)]
    for file in files:
        file.touch()
    return files


def test_nothing_is_learned_from_what_every_server_may_use(learn):
    assert learn(read=["/usr/bin", "/proc/self/status"], changed=["/dev/null"]) == LearnedRules()


def test_single_files_are_opened_one_by_one(learn, home):
    files = files_in(home / "notes", 2)

    assert learn(read=files).read == tuple(map(str, files))


def test_many_files_of_a_folder_open_the_folder(learn, home):
    assert learn(read=files_in(home / "notes", 4)).read == (str(home / "notes"),)


def test_the_home_folder_is_never_opened_as_a_whole(learn, home):
    files = files_in(home, 6)

    assert learn(read=[home, *files]).read == tuple(map(str, files))


def test_a_file_of_a_package_opens_the_package(learn, home):
    (file,) = files_in(home / "app/node_modules/@scope/left-pad/lib", 1)

    assert learn(read=[file]).read == (str(home / "app/node_modules/@scope/left-pad"),)


def test_a_new_file_needs_its_folder(learn, home):
    (home / "out").mkdir()

    assert learn(changed=[home / "out/new/report.md"]).write == (str(home / "out"),)


def test_what_may_be_changed_needs_no_rule_to_be_read(learn, home):
    files = files_in(home / "out", 1)

    rules = learn(read=files, changed=files)

    assert (rules.read, rules.write) == ((), (str(home / "out"),))


def test_private_paths_are_reported_and_not_opened(learn, home):
    (key,) = files_in(home / ".ssh", 1)

    rules = learn(read=[key])

    assert rules.read == ()
    assert rules.private == (str(key),)


def test_a_folder_among_the_arguments_is_opened(learn, home):
    (home / "work").mkdir()

    assert learn(arguments=["--verbose", home / "work"]).read == (str(home / "work"),)


def test_usual_ports_are_left_out_of_the_rules(learn):
    assert learn(hosts=["b.example:8443", "a.example:443"]).hosts == ("a.example", "b.example:8443")
    assert host_rule("a.example:80") == "a.example"


def test_rules_of_two_runs_are_joined():
    first = LearnedRules(read=("/b",), hosts=("h",))
    second = LearnedRules(read=("/a", "/b"), write=("/w",), proc=True)

    both = first.join(second)

    assert both == LearnedRules(read=("/a", "/b"), write=("/w",), hosts=("h",), proc=True)
    assert [os.fspath(path) for path in both.as_settings().read] == ["/a", "/b"]


def test_hosts_beyond_the_limit_are_counted_together():
    traffic = Traffic()
    for number in range(300):
        traffic.on_opened(f"{number}.example")

    counts = traffic.hosts()

    assert len(counts) == 201
    assert counts[-1].host == "others"
