"""Finds servers in a folder: every subfolder with an entry script is one."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from multitap.config.dialects.draft import Entry, FieldPath, Reading, literal
from multitap.config.dialects.host_format import Transcript
from multitap.config.dialects.local_remote import FOLDER_SPELLING
from multitap.config.documents import Document, Node, is_file, read_file
from multitap.config.owners import entries_of, refusal
from multitap.config.problems import Place, Problem, Severity
from multitap.files import open_regular

SCRIPTS = ("server.mjs", "server.js", "server.ts", "server.py")
"""In order of preference; the first one that exists starts the server."""
CONFIG = "config.jsonc"
PROJECT = "pyproject.toml"

_INLINE_METADATA = re.compile(r"^# /// script\s*$", re.MULTILINE)
# PEP 723 puts the block near the top; the rest of a large script need not be read.
_HEADER = 64 * 1024


class Toolbox(msgspec.Struct, frozen=True):
    """The programs that can run scripts."""

    which: Callable[[str], str | None] = shutil.which
    python: str = sys.executable


def scan(
    folder: Path, *, toolbox: Toolbox | None = None, within: Path | None = None
) -> tuple[Reading, Reading]:
    """The servers of the scripts in a folder, and the amendments in their `config.jsonc`.

    Args:
        folder: The folder of servers.
        toolbox: The programs that can run scripts.
        within: The folder of its project; nothing is read outside it.
    """
    tools = toolbox or Toolbox()
    entries: list[Entry] = []
    amended: list[Reading] = []
    problems: list[Problem] = []
    try:
        there = scripts(folder)
    except OSError as exc:
        problem = Problem(
            severity=Severity.ERROR, message=f"cannot be read: {exc.strerror}", place=Place(folder)
        )
        return Reading(dialect="", problems=(problem,)), Reading(dialect="")
    for script in there:
        files = (script, script.parent / CONFIG, script.parent / PROJECT)
        if refused := next(filter(None, (refusal(path, within=within) for path in files)), None):
            problems.append(replace(refused, server=script.parent.name))
            continue
        entry, complaints = _entry(script, tools)
        entries.append(entry)
        problems += complaints
        amended.append(_amendment(script.parent))
    return Reading(
        dialect="mcpservers/", entries=tuple(entries), problems=tuple(problems)
    ), Reading(
        dialect="mcpservers/",
        entries=tuple(entry for reading in amended for entry in reading.entries),
        problems=tuple(problem for reading in amended for problem in reading.problems),
    )


def scripts(folder: Path) -> tuple[Path, ...]:
    """The entry scripts in a folder's subfolders, in the order of their names.

    Raises:
        OSError: The folder exists, but cannot be read.
    """
    try:
        folders = [path for path in entries_of(folder) if _may_be_server(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    candidates = (_script(path) for path in folders)
    return tuple(script for script in candidates if script is not None)


def _may_be_server(name: str) -> bool:
    # The name of a folder becomes the name of a server, and appears in messages on a terminal.
    return name.isprintable() and not name.startswith((".", "_")) and name != "node_modules"


def _script(folder: Path) -> Path | None:
    return next((path for name in SCRIPTS if is_file(path := folder / name)), None)


def _entry(script: Path, tools: Toolbox) -> tuple[Entry, list[Problem]]:
    name = script.parent.name
    argv, lack = runner(script, tools)
    # a `${` in the name of a folder is text
    command, *args = (literal(word) for word in argv or ("",))
    node = Document(path=script, data={}).root
    fields: dict[FieldPath, Node] = {
        ("command",): node.of(command),
        ("args",): node.of(args),
        ("cwd",): node.of(Path(literal(str(script.parent)))),
    }
    entry = Entry(name=name, node=node, fields=fields, broken=not argv)
    if lack is None:
        return entry, []
    severity = Severity.WARNING if argv else Severity.ERROR
    message, hint = f"{lack} is not installed", f"install {lack}"
    return entry, [
        Problem(severity=severity, message=message, place=Place(script), server=name, hint=hint)
    ]


def runner(script: Path, tools: Toolbox) -> tuple[tuple[str, ...], str | None]:
    """The command that runs a script, and a missing program, if any."""
    if script.suffix == ".py":
        return _python(script, tools)
    # Bun first: it runs TypeScript as it is, while node needs a flag for it.
    commands = {"bun": ("bun", "run", str(script)), "node": ("node", str(script))}
    if script.suffix == ".ts":
        commands["node"] = ("node", "--experimental-strip-types", str(script))
    for program, command in commands.items():
        if tools.which(program):
            return command, None
    return (), "node or bun"


def _python(script: Path, tools: Toolbox) -> tuple[tuple[str, ...], str | None]:
    """The current Python, or uv if the script declares dependencies."""
    plain = (tools.python, str(script))
    inline = _has_inline_metadata(script)
    if not inline and not is_file(script.parent / PROJECT):
        return plain, None
    if not tools.which("uv"):
        # it may run nevertheless, with what is installed here: a warning, not an error
        return plain, "uv"
    option = ("--script",) if inline else ("--project", str(script.parent))
    return ("uv", "run", *option, str(script)), None


def _has_inline_metadata(script: Path) -> bool:
    try:
        with open_regular(script) as file:
            text = file.read(_HEADER).decode(errors="replace")
        return bool(_INLINE_METADATA.search(text))
    except OSError:
        return False


def _amendment(folder: Path) -> Reading:
    document, problems = read_file(folder / CONFIG)
    if document is None and not problems:
        return Reading(dialect="mcpservers/")
    if document is None:  # it may have disabled the server
        node = Document(path=folder / CONFIG, data={}).root
        entry = Entry(name=folder.name, node=node, fields={}, broken=True)
        reasons = tuple(replace(problem, server=folder.name) for problem in problems)
        return Reading(dialect="mcpservers/", entries=(entry,), problems=reasons)
    transcript = Transcript("mcpservers/", document, folder, FOLDER_SPELLING)
    transcript.problems += problems
    transcript.entry(folder.name, document.root)
    return transcript.reading()
