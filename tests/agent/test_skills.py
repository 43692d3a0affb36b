import pytest

from multitap.agent import skills
from multitap.config import Severity
from multitap.errors import UnknownName

MANUAL = "---\nname: brew-tea\ndescription: Makes tea. Use when somebody is thirsty.\n---\n# Tea\n"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "skills"


def write(path, text=MANUAL):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_skill_is_found_with_what_its_manual_says(folder):
    header = "---\nname: brew-tea\ndescription: >-\n  Makes\n  tea.\nlicense: MIT\n---\nBoil water."
    write(folder / "brew-tea" / "SKILL.md", header)
    found, problems = skills.scan([folder])

    assert problems == ()
    assert found["brew-tea"].description == "Makes tea."
    assert found["brew-tea"].metadata == {"license": "MIT"}
    assert found["brew-tea"].instructions() == "Boil water."


def test_a_file_with_the_line_ends_of_windows_is_read_too(folder):
    write(folder / "brew-tea" / "SKILL.md", MANUAL.replace("\n", "\r\n"))

    assert skills.scan([folder])[0]["brew-tea"].instructions() == "# Tea"


def test_files_beside_the_manual_are_named_and_read(folder):
    write(folder / "brew-tea" / "SKILL.md")
    write(folder / "brew-tea" / "references" / "kinds.md", "green, black")
    write(folder / "brew-tea" / ".secret", "no")
    skill = skills.scan([folder])[0]["brew-tea"]

    assert skill.instructions() == "# Tea\n\nFiles of this skill:\n- references/kinds.md"
    assert skill.read("references/kinds.md") == "green, black"


@pytest.mark.parametrize(
    "file",
    ["../secret", "references/../../secret", "/etc/passwd", "linked", "linked_folder/x", "."],
)
def test_nothing_outside_of_a_skills_folder_is_read(folder, file):
    write(folder / "brew-tea" / "SKILL.md")
    write(folder / "secret", "hidden")
    write(folder.parent / "outside" / "x", "hidden")
    (folder / "brew-tea" / "linked").symlink_to(folder / "secret")
    (folder / "brew-tea" / "linked_folder").symlink_to(folder.parent / "outside")
    skill = skills.scan([folder])[0]["brew-tea"]

    with pytest.raises(UnknownName, match="brew-tea"):
        skill.read(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# Tea", "does not begin with"),
        ("---\nname: brew-tea\n", "does not begin with"),
        ("---\nname: [\n---\n", "not valid YAML"),
        ("---\n- a\n---\n", "lower-case letters"),
        ("---\nname: Brew Tea\ndescription: x\n---\n", "lower-case letters"),
        ("---\nname: brew-tea\n---\n", "1 to 1024 characters"),
        ("---\nname: brew-tea\ndescription: 5\n---\n", "1 to 1024 characters"),
        (b"---\nname: \xff\n---\n", "not a text"),
    ],
)
def test_a_bad_skill_costs_only_itself_and_says_why(folder, text, reason):
    write(folder / "brew-tea" / "SKILL.md")
    broken = write(folder / "broken" / "SKILL.md", text)
    found, (problem,) = skills.scan([folder])

    assert [*found] == ["brew-tea"]
    assert reason in problem.message
    assert problem.place.file == broken


def test_a_place_in_a_bad_header_is_reported_by_line(folder):
    path = write(folder / "broken" / "SKILL.md", "---\nname: x\ndescription: 'open\n---\n")
    _, (problem,) = skills.read_skill(path)

    assert problem.place.line >= 3


def test_a_skill_in_a_folder_of_another_name_is_used_with_a_warning(folder):
    write(folder / "coffee" / "SKILL.md")
    found, (problem,) = skills.scan([folder])

    assert [*found] == ["brew-tea"]
    assert problem.severity is Severity.WARNING


def test_folders_without_skills_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()

    assert skills.scan([tmp_path / "missing", tmp_path / "empty"]) == ({}, ())


def test_a_later_folder_wins(tmp_path):
    for name in ("mine", "theirs"):
        write(tmp_path / name / "brew-tea" / "SKILL.md", MANUAL.replace("# Tea", name))
    found, _ = skills.scan([tmp_path / "mine", tmp_path / "theirs"])

    assert found["brew-tea"].instructions() == "theirs"


def test_a_model_is_told_which_skills_there_are(folder):
    write(folder / "brew-tea" / "SKILL.md")
    text = skills.overview(skills.scan([folder])[0])

    assert "`read_skill`" in text
    assert "- brew-tea: Makes tea. Use when somebody is thirsty." in text
    assert skills.overview({}) == ""


async def test_the_tool_reads_instructions_and_files_as_they_are_then(folder):
    tool = skills.reading_tool([folder])
    write(folder / "brew-tea" / "SKILL.md", MANUAL + "x" * 20_000)
    write(folder / "brew-tea" / "kinds.md", "green")

    assert len((await tool.execute({"name": "brew-tea"})).text) > 20_000
    assert (await tool.execute({"name": "brew-tea", "file": "kinds.md"})).text == "green"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "coffee"}, "no skill named 'coffee'; known skills: brew-tea"),
        ({"name": "brew-tea", "file": "kind.md"}, "did you mean `kinds.md`?"),
        ({"name": "brew-tea", "file": "../x"}, "outside the folder"),
    ],
)
async def test_the_tool_says_what_a_model_did_wrong(folder, arguments, words):
    write(folder / "brew-tea" / "SKILL.md")
    write(folder / "brew-tea" / "kinds.md")
    result = await skills.reading_tool([folder]).execute(arguments)

    assert result.is_error
    assert words in result.text
