"""What an agent reads: prompts of the configuration, and skills, folders of instructions."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from multitap.config import PromptConfig, Scope
from multitap.config.documents import Document, Malformed, is_file, is_table
from multitap.config.owners import entries_of, files_below
from multitap.config.problems import Place, Problem, Severity, did_you_mean
from multitap.config.projects import MANUAL
from multitap.config.variables import content, expand
from multitap.errors import BadArguments, UnknownName
from multitap.files import read_regular
from multitap.tools import ToolDef

_PLACE = re.compile(r"\{(\w+)\}")


def prompt_text(prompt: PromptConfig, scope: Scope) -> str:
    """The text of a prompt, before its arguments are filled in.

    Raises:
        ConfigError: Its file cannot be read.
    """
    if prompt.file is not None:
        return content(expand(str(prompt.file), scope), scope)
    return prompt.text or ""


def fill_prompt(text: str, declared: Mapping[str, str], arguments: Mapping[str, str]) -> str:
    """A text with its arguments filled in; any other `{word}` stays as it is.

    Raises:
        BadArguments: One is missing, or is not declared.
    """
    for name in arguments.keys() - declared.keys():
        raise BadArguments(
            f"the prompt has no argument {name!r}",
            path=f"/{name}",
            hint=f"it has: {', '.join(declared) or 'none'}",
        )
    for name in declared.keys() - arguments.keys():
        raise BadArguments(
            f"the prompt needs the argument {name!r}",
            path=f"/{name}",
            hint=declared[name] or None,
        )
    return _PLACE.sub(lambda match: arguments.get(match[1], match[0]), text)


READ_SKILL = "read_skill"
"""The name of the tool that reads them."""
LARGEST_FILE = 1024 * 1024
MAX_FILES = 100
"""How many files beside a manual are listed in it."""
LONGEST_TEXT = 50_000
"""Characters of a manual or file that a model sees."""

_HEADER = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# These limits, and the form of names, are those of the SKILL.md format.
_LONGEST_NAME = 64
_LONGEST_DESCRIPTION = 1024


class Skill(msgspec.Struct, frozen=True):
    """A folder of instructions for an agent."""

    name: str
    description: str
    """What it is for, and when."""
    folder: Path
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Other keys of its header, such as `license`."""

    def instructions(self) -> str:
        """The manual, and the names of the files beside it.

        Raises:
            UnknownName: It no longer exists, or cannot be read.
        """
        text = _HEADER.sub("", self.read(MANUAL), count=1).strip()
        files = "\n".join(f"- {name}" for name in self.files())
        return f"{text}\n\nFiles of this skill:\n{files}" if files else text

    def files(self) -> tuple[str, ...]:
        """The other files in its folder, by the names that `read` accepts."""
        return tuple(name for name, _ in zip(_beside(self.folder), range(MAX_FILES), strict=False))

    def read(self, file: str) -> str:
        """The text of one of its files.

        Raises:
            UnknownName: There is no such file within its folder, or it is not a text.
        """
        try:
            return _read_within(self.folder, file)
        except (OSError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or exc
            hint = did_you_mean(file, (MANUAL, *self.files()))
            raise UnknownName(
                f"the skill {self.name!r} has no file {file!r} to read: {reason}", hint=hint
            ) from None


Skills = Mapping[str, Skill]
Accepts = Callable[[Path], bool]


def scan(
    folders: Iterable[Path], *, accepts: Accepts = lambda _: True
) -> tuple[Skills, tuple[Problem, ...]]:
    """The skills in some folders, and the problems of others; a later folder wins.

    Args:
        folders: Folders whose subfolders contain a `SKILL.md`.
        accepts: Whether a skill, by its folder, may be read.
    """
    skills: dict[str, Skill] = {}
    problems: list[Problem] = []
    for folder in folders:
        for manual in _manuals(folder):
            if not accepts(manual.parent):
                continue
            skill, complaints = read_skill(manual)
            problems += complaints
            if skill is not None:
                skills[skill.name] = skill
    return skills, tuple(problems)


def read_skill(manual: Path) -> tuple[Skill | None, tuple[Problem, ...]]:
    """The skill that a manual describes, or None with the reason."""
    from multitap.config import yaml  # noqa: PLC0415 - it takes its time, and few have one

    try:
        text = _read_within(manual.parent, manual.name)
    except (OSError, ValueError) as exc:
        return None, (_wrong(manual, f"cannot be read: {getattr(exc, 'strerror', None) or exc}"),)
    if not (header := _HEADER.match(text)):
        return None, (_wrong(manual, "does not begin with `---`, `name`, `description`, `---`"),)
    document = Document(path=manual, data={}, format="yaml", text=text)
    try:
        header_data = yaml.parse(header[1]).data
    except Malformed as exc:
        place = document.at(header.start(1) + exc.offset)
        return None, (Problem(severity=Severity.ERROR, message=exc.words("yaml"), place=place),)
    return _parse_skill(manual, header_data if is_table(header_data) else {})


def overview(skills: Skills) -> str:
    """The list of skills for a system prompt; empty if there are none."""
    lines = (f"- {skill.name}: {' '.join(skill.description.split())}" for skill in skills.values())
    text = "\n".join(lines)
    opening = (
        f"Skills: before a task that one of them covers, read its instructions with `{READ_SKILL}`."
    )
    return f"{opening}\n{text}" if text else ""


def reading_tool(folders: Iterable[Path], *, accepts: Accepts = lambda _: True) -> ToolDef:
    """A tool that reads the current skills in some folders, as far as `accepts` allows."""
    places = tuple(folders)

    def read_skill(name: str, file: str = MANUAL) -> str:
        # read again: people change skills while an agent runs
        skill = _find(scan(places, accepts=accepts)[0], name)
        return skill.instructions() if file == MANUAL else skill.read(file)

    return ToolDef(
        READ_SKILL,
        "Read the instructions of a skill, or another file of it.",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "Which skill."},
                "file": {
                    "type": "string",
                    "default": MANUAL,
                    "description": "Which of its files; the instructions name them.",
                },
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        read_skill,
        max_result_chars=LONGEST_TEXT,
    )


def _find(skills: Skills, name: str) -> Skill:
    try:
        return skills[name]
    except KeyError:
        there = ", ".join(skills) or "none"
        raise UnknownName(f"no skill named {name!r}", hint=f"known skills: {there}") from None


def _manuals(folder: Path) -> list[Path]:
    try:
        return [manual for path in entries_of(folder) if is_file(manual := path / MANUAL)]
    except OSError:  # a folder that must not be read counts as empty
        return []


def _parse_skill(
    manual: Path, header: Mapping[str, Any]
) -> tuple[Skill | None, tuple[Problem, ...]]:
    name, description = header.get("name"), header.get("description")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        message = "expected 1 to 64 lower-case letters, digits and single hyphens"
        return None, (_wrong(manual, message, "name"),)
    if not isinstance(description, str) or not 0 < len(description.strip()) <= _LONGEST_DESCRIPTION:
        return None, (_wrong(manual, "expected a text of 1 to 1024 characters", "description"),)
    metadata = {key: value for key, value in header.items() if key not in ("name", "description")}
    skill = Skill(name, description.strip(), manual.parent, metadata)
    if name == manual.parent.name:
        return skill, ()
    message = f"is {name!r} in a folder named {manual.parent.name!r}; other programs refuse that"
    return skill, (
        Problem(severity=Severity.WARNING, message=message, place=Place(manual), key="name"),
    )


def _wrong(manual: Path, message: str, key: str = "") -> Problem:
    return Problem(severity=Severity.ERROR, message=message, place=Place(manual), key=key)


def _read_within(folder: Path, file: str) -> str:
    """A file's text, if the file is really in the folder, with links resolved."""
    root = folder.resolve()
    path = (root / PurePosixPath(file)).resolve()
    # The model chooses the name: neither `../../.ssh/id_rsa` nor a link may lead out of the folder.
    if not path.is_relative_to(root):
        raise ValueError("it is outside the folder")
    if not path.is_file():
        raise ValueError("it does not exist")
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
        return text.replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise ValueError("it is not a text") from None


def _beside(folder: Path) -> Iterator[str]:
    for path in files_below(folder, skips=lambda name: name.startswith(".")):
        name = path.relative_to(folder).as_posix()
        if not path.name.startswith(".") and name != MANUAL:
            yield name
