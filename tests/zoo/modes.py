"""Every fault of the zoo, and what becomes of a good client that meets it."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Literal

from multitap.events import FailureCode

HERE = Path(__file__).parent
SERVER = HERE / "server.py"
README = HERE / "README.md"
PROGRAMS = {"missing_command": "/nonexistent/zoo-server", "not_executable": str(README)}
"""Modes that never get as far as our server."""


class Group(StrEnum):
    START = "start"
    PROTOCOL = "protocol"
    SIZE = "size"
    FLOOD = "flood"
    LISTING = "listing"
    LIFECYCLE = "lifecycle"
    SCHEMA = "schema"
    SECURITY = "security"


class Outcome(StrEnum):
    """How a call may end."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    """A result that says `isError`."""
    SERVER_ERROR = "server_error"
    BAD_ANSWER = "bad_answer"
    """An error at once, not when the time is up."""
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"
    """The tool was left out of the catalog."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One fault and what a test may expect."""

    group: Group
    fault: str
    duty: str
    """What a good client does about it."""
    promises: tuple[int, ...] = ()
    """The promises that it is about; that nothing hangs, stalls or leaks concerns them all."""
    connects: bool = True
    """Whether the server comes to have its tools listed; a second start may be needed."""
    failure_code: FailureCode | None = None
    """The reason that the snapshot gives where it does not connect."""
    outcomes: tuple[Outcome, ...] = (Outcome.OK,)
    """How a call of the tool `fault`, which shows the fault, may end."""
    survives: bool = True
    """Whether a later call of `echo` succeeds, perhaps after a restart."""
    restarts: bool = False
    """Whether it takes a restart to come to that."""
    found_by_health: bool = False
    """Whether only a health check can see that the restart is needed."""
    warns: bool = False
    """Whether the snapshot should warn of something odd."""
    leaks: bool = False
    """Whether a client that only closes the pipes leaves processes behind."""
    stubborn: bool = False
    """Whether it outlives the end of its stdin."""
    era: Literal["both", "handshake", "stateless"] = "both"
    needs_folder: bool = False
    """Whether it has to be given a ZOO_DIR to remember its earlier starts."""


def command(mode: str, *options: str) -> list[str]:
    """The argv that starts a mode; options are `--count`, `--bytes`, `--seconds` and so on.

    `--era handshake` or `--era stateless` restricts what it speaks; with `--once` and a ZOO_DIR
    only the first start has the fault.
    """
    if program := PROGRAMS.get(mode):
        return [program]
    return [sys.executable, "-I", "-S", str(SERVER), mode, *options]


_start = partial(Mode, Group.START)
_failed = partial(_start, connects=False, survives=False, outcomes=())
_protocol = partial(Mode, Group.PROTOCOL)
_size = partial(Mode, Group.SIZE)
_flood = partial(Mode, Group.FLOOD)
_listing = partial(Mode, Group.LISTING)
_unlisted = partial(_listing, connects=False, survives=False, outcomes=())
_lifecycle = partial(Mode, Group.LIFECYCLE)
_lost = partial(_lifecycle, connects=False, survives=False, outcomes=())
_schema = partial(Mode, Group.SCHEMA)
_security = partial(Mode, Group.SECURITY)

_BAD = (Outcome.BAD_ANSWER,)
_OK_OR_BAD = (Outcome.OK, Outcome.BAD_ANSWER)
_GONE = (Outcome.UNAVAILABLE,)
_SILENT = (Outcome.TIMEOUT, Outcome.UNAVAILABLE)
_UNCHECKED = (Outcome.OK, Outcome.BAD_ANSWER, Outcome.UNKNOWN)
_REFUSED = (Outcome.OK, Outcome.BAD_ANSWER, Outcome.SERVER_ERROR, Outcome.TOOL_ERROR)

MODES: Mapping[str, Mode] = {
    "good": _start("none; both eras", "connects by the newer era", (17,)),
    "good_legacy": _start(
        "none; refuses `server/discover`", "falls back at once", (17,), era="handshake"
    ),
    "good_modern": _start(
        "none; refuses `initialize`", "connects without it", (17,), era="stateless"
    ),
    "missing_command": _failed(
        "there is no such program",
        "says what is missing and does not retry",
        (18,),
        failure_code=FailureCode.MISSING_PROGRAM,
    ),
    "not_executable": _failed(
        "the file is no program",
        "says so and does not retry",
        (18,),
        failure_code=FailureCode.MISSING_PROGRAM,
    ),
    "exit_at_start": _failed(
        "a line on stderr, exit 1",
        "shows exit code and stderr",
        (3, 18),
        failure_code=FailureCode.CRASH,
    ),
    "exit_silently": _failed(
        "exit 0, no word", "says that it ended unasked", (18,), failure_code=FailureCode.CRASH
    ),
    "exit_code_3_with_traceback": _failed(
        "a traceback, exit 3", "shows its last lines", (18,), failure_code=FailureCode.CRASH
    ),
    "needs_mcp_lt_2": _failed(
        "written for an older SDK; ImportError",
        "hints at the version",
        (18,),
        failure_code=FailureCode.CRASH,
    ),
    "usage_on_stdout": _failed(
        "usage text on stdout, exit 2", "quotes it", (18,), failure_code=FailureCode.CRASH
    ),
    "never_init": _failed(
        "reads, never answers",
        "gives up at its own deadline",
        (1, 3),
        failure_code=FailureCode.HANG,
    ),
    "login_prompt": _failed(
        "asks for a password on stdout", "quotes it", (1, 18), failure_code=FailureCode.HANG
    ),
    "slow_init": _start("answers the handshake after 1 s", "waits", (17,)),
    "busy_start": _start("works for 0.3 s before it reads", "starts few of them at a time", (17,)),
    "slow_discover": _start(
        "answers the probe after 3 s, then refuses `initialize`", "probes once more", (17,)
    ),
    "slow_in_both": _start(
        "answers both handshakes after 2 s, and keeps to the last", "keeps to the last, too", (17,)
    ),
    "silent_on_initialize": _start(
        "answers the probe after 1.5 s, and ignores `initialize`",
        "starts it again",
        (17,),
        era="stateless",
    ),
    "no_result_type": _start("results without a `resultType`", "adds it", (17,), era="stateless"),
    "silent_on_discover": _start(
        "ignores the probe",
        "falls back within 2.5 s, remembers",
        (17,),
        era="handshake",
    ),
    "exits_on_discover": _start(
        "exits on the probe", "starts it again in the older era", (17,), era="handshake"
    ),
    "discover_wrong_code": _start(
        "refuses the probe with another code", "falls back", (17,), era="handshake"
    ),
    "discover_bad_result": _start(
        "answers the probe with nothing useful", "falls back", (17,), era="handshake"
    ),
    "discover_legacy_only": _start(
        "answers the probe with older versions only", "falls back", (17,), era="handshake"
    ),
    "init_error": _failed(
        "refuses the handshake",
        "shows the server's words",
        (18,),
        failure_code=FailureCode.PROTOCOL,
        era="handshake",
    ),
    "init_wrong_shape": _failed(
        "answers the handshake with something else",
        "says what is wrong",
        (18,),
        failure_code=FailureCode.PROTOCOL,
        era="handshake",
    ),
    "exit_in_handshake": _failed(
        "exits on the first request", "shows exit code", (18,), failure_code=FailureCode.CRASH
    ),
    "bad_version": _failed(
        "wants a version of 1999",
        "names both versions",
        (18,),
        failure_code=FailureCode.PROTOCOL,
        era="handshake",
    ),
    "bad_version_modern": _failed(
        "wants a version of 2099",
        "names both versions",
        (18,),
        failure_code=FailureCode.PROTOCOL,
        era="stateless",
    ),
    "old_version": _start("speaks 2024-11-05 only", "speaks it too", (17,), era="handshake"),
    "era_flip": _start(
        "another era at every start",
        "forgets the remembered era when it does not fit",
        (8, 17),
        needs_folder=True,
    ),
    "echo_secret": _failed(
        "refuses with its secret in the words",
        "hides the secret everywhere",
        (18, 25),
        failure_code=FailureCode.PROTOCOL,
    ),
    "late_tools": _start("no tools at first, all after 0.3 s", "lists again", (17,)),
    "roots_at_once": _start(
        "asks for roots right after the handshake", "answers or refuses", (17,), era="handshake"
    ),
    "roots_before_list": _start(
        "lists only once its question is answered", "answers or refuses", (1, 17), era="handshake"
    ),
    "buffered_stdout": _failed(
        "never flushes", "gives up at its own deadline", (1,), failure_code=FailureCode.HANG
    ),
    "batch_array": _protocol("answer in an array", "fails fast", (12,), outcomes=_OK_OR_BAD),
    "two_on_a_line": _protocol("two messages on a line", "fails fast", (12,), outcomes=_OK_OR_BAD),
    "pretty_json": _protocol("answer over several lines", "fails fast", (12,), outcomes=_BAD),
    "lone_surrogate": _protocol("half a surrogate pair", "fails fast", (12,), outcomes=_OK_OR_BAD),
    "big_int": _protocol("a number of 5000 digits", "fails fast", (12,), outcomes=_OK_OR_BAD),
    "deep_json": _protocol("100 000 levels", "fails fast", (4, 12), outcomes=_OK_OR_BAD),
    "bad_utf8_answer": _protocol("no UTF-8", "fails fast, reads on", (12, 13), outcomes=_BAD),
    "unicode_line_separators": _protocol("U+2028 inside a string", "splits at \\n only", (13,)),
    "neither": _protocol("neither result nor error", "fails fast", (12,), outcomes=_BAD),
    "both": _protocol(
        "result and error",
        "takes it for an error",
        (12,),
        outcomes=(Outcome.SERVER_ERROR, Outcome.BAD_ANSWER),
    ),
    "result_wrong_type": _protocol("a result that is text", "fails fast", (12,), outcomes=_BAD),
    "result_null": _protocol("a result that is null", "fails fast", (12,), outcomes=_BAD),
    "error_wrong_shape": _protocol("an error that is text", "fails fast", (12,), outcomes=_BAD),
    "null_id_error": _protocol(
        "an error for nobody",
        "takes it for the only call's",
        (12,),
        outcomes=(Outcome.BAD_ANSWER, Outcome.SERVER_ERROR),
    ),
    "id_as_string": _protocol(
        "the id in another type",
        "does not take it for its own",
        (12, 19),
        outcomes=(Outcome.BAD_ANSWER, Outcome.TIMEOUT),
    ),
    "id_as_float": _protocol(
        "the id with a fraction",
        "does not take it for its own",
        (12, 19),
        outcomes=(*_OK_OR_BAD, Outcome.TIMEOUT),
    ),
    "missing_jsonrpc": _protocol("no version member", "decides fast", (12,), outcomes=_OK_OR_BAD),
    "duplicate_keys": _protocol(
        "two results, the first forged", "never the first", (12, 19), outcomes=_OK_OR_BAD
    ),
    "bad_content": _protocol("content of odd kinds", "keeps the good block", (12,)),
    "empty_result": _protocol(
        "a result without content", "decides fast", (12,), outcomes=_OK_OR_BAD
    ),
    "dup_answer": _protocol("every answer twice, then forged", "takes the first", (9, 19)),
    "unknown_id_answer": _protocol("forged answers to no question", "drops them", (19,)),
    "pre_answer": _protocol("forged answers to ids 1 to 1000", "has ids nobody guesses", (19,)),
    "reorder": _protocol("last answer first", "matches by id", (19,)),
    "same_id_request": _protocol(
        "asks under the id of our call", "keeps the two apart", (19,), era="handshake"
    ),
    "cancels_ours": _protocol("cancels our request", "does not care", (12,)),
    "exit_mid_call": _protocol(
        "exits in a call",
        "fails at once, restarts, repeats only what may be repeated",
        (8, 9),
        outcomes=_GONE,
        restarts=True,
    ),
    "never_answer": _protocol(
        "leaves a call open", "times out and cancels", (1, 11), outcomes=(Outcome.TIMEOUT,)
    ),
    "late_answer": _protocol(
        "answers when cancelled", "drops it", (9, 11, 19), outcomes=(Outcome.TIMEOUT,)
    ),
    "bad_progress": _protocol("progress that makes no sense", "drops it", (12,)),
    "bad_notifications": _protocol("notifications that make no sense", "drops them", (13,)),
    "bom": _protocol("a byte order mark first", "skips it", (13,)),
    "garbage_before": _protocol("a banner on stdout", "skips and counts it", (13,), warns=True),
    "garbage_between": _protocol("logs on stdout", "skips and counts them", (13,), warns=True),
    "garbage_binary": _protocol("bytes on stdout", "skips and counts them", (13,), warns=True),
    "zero_bytes": _protocol("NULs on stdout", "skips and counts them", (13,), warns=True),
    "empty_lines": _protocol("blank lines", "skips them", (13,)),
    "crlf": _protocol("lines end with CR LF", "does not care", (13,)),
    "partial_write": _protocol("a byte at a time", "waits for the newline", (5, 13)),
    "huge_line": _size("an answer of 64 MiB", "fails, names the limit", (4,), outcomes=_BAD),
    "huge_line_id_last": _size("the same, id last", "finds the id", (4, 12), outcomes=_BAD),
    "huge_notification": _size("a notification of 64 MiB", "drops it", (4,)),
    "huge_error": _size(
        "an error of 9 MiB", "cuts the words", (4,), outcomes=(Outcome.SERVER_ERROR,)
    ),
    "endless_line": _size(
        "an answer without end",
        "fails at the limit, reads on without keeping, restarts",
        (4,),
        outcomes=_BAD,
        restarts=True,
        found_by_health=True,
        stubborn=True,
    ),
    "huge_instructions": _size("4 MiB of instructions", "cuts them", (4,)),
    "wide_json": _size("2 000 000 items", "does not build them", (2, 4), outcomes=_OK_OR_BAD),
    "list_huge": _size(
        "a list of 40 MiB",
        "names the limit",
        (4,),
        connects=False,
        survives=False,
        outcomes=(),
        failure_code=FailureCode.PROTOCOL,
    ),
    "stdout_buffer_full": _size("writes 4 MiB before it reads", "never stops reading", (5, 14)),
    "flood_notifications": _flood("200 000 notifications", "is through in 3 s", (14,)),
    "flood_list_changed": _flood("20 000 changes", "lists twice at most", (14,)),
    "flood_updated": _flood("20 000 updates", "drops what nobody reads", (14,)),
    "flood_logs": _flood("50 000 log messages", "limits their rate", (14,)),
    "flood_requests": _flood("20 000 questions", "refuses most, keeps reading", (14,)),
    "flood_progress": _flood(
        "progress for ever", "ends at the hard limit", (11, 14), outcomes=(Outcome.TIMEOUT,)
    ),
    "flood_stderr": _flood("16 MiB on stderr", "keeps the last of it", (14,)),
    "stderr_endless_line": _flood("16 MiB without newline", "keeps the last of it", (14,)),
    "relist_loop": _flood("every list says: changed", "lists ever less often", (14, 16)),
    "listen_ends": _flood(
        "ends each listening stream at once", "waits before the next", (14,), era="stateless"
    ),
    "tools_bad_entries": _listing(
        "15 entries that are no tools", "keeps the rest", (15,), warns=True
    ),
    "tools_bad_schema": _listing("7 invalid schemas", "keeps the rest", (15,), warns=True),
    "tools_duplicate": _listing("`echo` three times", "keeps the first", (15,), warns=True),
    "tools_10k": _listing("10 000 tools and more", "cuts at the limit", (2, 16), warns=True),
    "357kb_schemas": _listing("357 KB of schemas", "takes them", (2,)),
    "very_long_tool_names": _listing("two names of 302 characters", "gives short ones", (15,)),
    "unicode_names": _listing("names of all kinds", "gives safe ones", (15,)),
    "paged": _listing("none; pages of four", "reads them all", (16,)),
    "slow_pages": _listing("pages of 0.1 s", "reads them all", (16,)),
    "cursor_empty_string": _listing("the cursor is empty", "goes on with it", (16,)),
    "cursor_loop": _listing("pages in a circle", "stops at the second visit", (16,), warns=True),
    "cursor_endless": _listing("pages for ever", "stops at the limit", (16,), warns=True),
    "cursor_wrong_type": _listing("the cursor is a number", "keeps the page", (16,), warns=True),
    "list_error": _unlisted(
        "refuses to list", "shows the server's words", (18,), failure_code=FailureCode.PROTOCOL
    ),
    "list_never": _unlisted(
        "never lists", "gives up at its own deadline", (1,), failure_code=FailureCode.HANG
    ),
    "list_wrong_shape": _unlisted(
        "the list is a map", "says so", (18,), failure_code=FailureCode.PROTOCOL
    ),
    "list_missing": _unlisted(
        "the list is not there", "says so", (18,), failure_code=FailureCode.PROTOCOL
    ),
    "list_error_later": _listing("cannot list again", "keeps the old list", (15,), warns=True),
    "other_lists_fail": _listing("no resources, no prompts", "offers the tools", (15,), warns=True),
    "prompts_never": _listing("never lists prompts", "offers the tools", (1, 15), warns=True),
    "prompts_every_other": _listing("lists prompts at every second request", "asks again", (1, 15)),
    "listen_refused": _listing(
        "refuses the listening stream", "does without, asks now and then", (16,), era="stateless"
    ),
    "listen_silent": _listing(
        "never acknowledges the stream", "connects all the same", (1, 16), era="stateless"
    ),
    "tools_only": _listing("none; has tools only", "asks for nothing else", (17,)),
    "sigstop_self": _lost(
        "stops after the handshake",
        "says so",
        (1,),
        failure_code=FailureCode.STOPPED,
        stubborn=True,
    ),
    "sigstop_in_call": _lifecycle(
        "stops in a call",
        "times out, restarts",
        (1, 8),
        outcomes=_SILENT,
        restarts=True,
        found_by_health=True,
        stubborn=True,
    ),
    "sigstop_idle": _lifecycle(
        "stops after a call",
        "notices, restarts",
        (8,),
        restarts=True,
        found_by_health=True,
        stubborn=True,
    ),
    "deaf": _lost(
        "reads no more after the handshake",
        "gives up at its own deadline",
        (1,),
        failure_code=FailureCode.HANG,
        stubborn=True,
    ),
    "deaf_in_call": _lifecycle(
        "reads no more from a call on",
        "times out, restarts",
        (1, 8),
        outcomes=_SILENT,
        restarts=True,
        found_by_health=True,
        stubborn=True,
    ),
    "deaf_idle": _lifecycle(
        "reads no more after a call",
        "notices, restarts",
        (8,),
        restarts=True,
        found_by_health=True,
        stubborn=True,
    ),
    "closes_stdout": _lost(
        "closes stdout, lives on", "ends it", (1,), failure_code=FailureCode.CRASH
    ),
    "closes_stdout_idle": _lifecycle(
        "the same after a call", "ends it, restarts", (8,), restarts=True
    ),
    "closes_stdin": _lost(
        "closes stdin, lives on",
        "ends it",
        (1,),
        failure_code=FailureCode.CRASH,
        stubborn=True,
    ),
    "closes_stdin_idle": _lifecycle(
        "the same after a call", "ends it, restarts", (8,), restarts=True, stubborn=True
    ),
    "closes_stderr": _lifecycle("has no stderr", "does not care", (8,)),
    "crash_loop": _lost(
        "exits 0.05 s after every handshake",
        "starts it 6 times a minute at most, then gives up",
        (10,),
        failure_code=FailureCode.CRASH_LOOP,
    ),
    "crash_idle": _lifecycle("exits after a call", "notices, restarts", (8,), restarts=True),
    "crash_on_list": _lost(
        "exits when asked to list", "shows exit code", (18,), failure_code=FailureCode.CRASH
    ),
    "crash_after_calls": _lifecycle("exits in the 4th call", "restarts", (8, 10)),
    "oom_killed": _lifecycle(
        "SIGKILL in a call", "names the signal", (8, 18), outcomes=_GONE, restarts=True
    ),
    "half_answer": _lifecycle(
        "exits in the middle of an answer",
        "fails at once, restarts",
        (8, 12),
        outcomes=(Outcome.UNAVAILABLE, Outcome.BAD_ANSWER),
        restarts=True,
    ),
    "writes_then_dies": _lifecycle(
        "answers and exits", "delivers the answer, restarts", (8,), restarts=True
    ),
    "answers_after_close": _lifecycle(
        "answers when stdin ends", "does not care", (7, 11), outcomes=_SILENT
    ),
    "ping_unanswered": _lifecycle(
        "answers all but health checks",
        "restarts, or trusts the calls that work",
        (8,),
    ),
    "exits_on_ping": _lifecycle("exits on a health check", "restarts, not too often", (8, 10)),
    "slow_reader": _lifecycle("reads 1 KB per 5 ms", "writes within the deadline", (2, 11)),
    "ignores_eof": _lifecycle("needs SIGTERM", "sends it", (7,), stubborn=True),
    "stubborn": _lifecycle("needs SIGKILL", "sends it within 5 s", (7,), stubborn=True),
    "slow_exit": _lifecycle("takes 1 s to go", "waits, but not for ever", (7,), stubborn=True),
    "exit_leave_child": _lifecycle("leaves a child", "ends it", (6,), leaks=True),
    "daemon_child": _lifecycle("leaves a daemon", "ends it", (6,), leaks=True),
    "daemon_child_clean_env": _lifecycle(
        "leaves a daemon without environment", "ends it", (6,), leaks=True
    ),
    "orphan_holds_pipes": _lifecycle(
        "exits in a call, its child keeps stdout open",
        "notices the exit, not the end of file",
        (6, 8),
        outcomes=_GONE,
        restarts=True,
        leaks=True,
    ),
    "fork_bomb_small": _lifecycle("leaves 20 children", "ends them", (6,), leaks=True),
    "regex_dos": _schema("a pattern for aeons", "bounds the check", (2,), outcomes=_UNCHECKED),
    "anyof_bomb": _schema("2^24 branches", "bounds the check", (2,), outcomes=_UNCHECKED),
    "unique_items": _schema("20 000 to compare", "bounds the check", (2,), outcomes=_UNCHECKED),
    "ref_remote": _schema("a schema elsewhere", "never fetches it", (15,), outcomes=_UNCHECKED),
    "ref_loop": _schema("references in a circle", "bounds the check", (2,), outcomes=_UNCHECKED),
    "deep_schema": _schema("400 levels", "bounds the check", (2,), outcomes=_UNCHECKED),
    "wide_schema": _schema("50 000 branches", "bounds the check", (2,), outcomes=_UNCHECKED),
    "output_mismatch": _schema("breaks its own schema", "says so", (12,), outcomes=_OK_OR_BAD),
    "ansi_escapes": _security("escape sequences everywhere", "makes them visible", ()),
    "stderr_binary": _security("bytes on stderr", "makes them visible", (13,)),
    "homoglyph": _security("four twins of `echo`", "tells them apart", (15,)),
    "poison": _security("orders in a description", "flags it", ()),
    "rug_pull": _security("changes a description", "flags the change", (), needs_folder=True),
    "rug_pull_silent": _security("the same, unsaid", "flags the change", (), needs_folder=True),
    "mrtr_loop": _security(
        "asks for ever",
        "stops after 10 rounds",
        (1,),
        outcomes=(Outcome.BAD_ANSWER, Outcome.SERVER_ERROR, Outcome.TOOL_ERROR),
        era="stateless",
    ),
    "mrtr_loop_state_only": _security(
        "wants to be called for ever",
        "stops after 10 rounds",
        (1,),
        outcomes=(Outcome.BAD_ANSWER, Outcome.SERVER_ERROR, Outcome.TOOL_ERROR),
        era="stateless",
    ),
    "mrtr_phish": _security(
        "asks for a password", "refuses", (), outcomes=_REFUSED, era="stateless"
    ),
    "elicit_phish": _security(
        "the same in the older era", "refuses", (), outcomes=_REFUSED, era="handshake"
    ),
    "undeclared_sampling": _security(
        "uses a model that was not offered", "refuses", (), outcomes=_REFUSED
    ),
    "unknown_request": _security("asks for `zoo/give`", "refuses", (), era="handshake"),
    "env_dump": _security("tells its environment", "gives it a short one", ()),
    "fd_dump": _security("tells its descriptors", "gives it three", ()),
    "prints_secret": _security(
        "its secret in stderr, log and error",
        "hides it everywhere",
        (25,),
        outcomes=(Outcome.SERVER_ERROR,),
    ),
    "resource_link": _security("links to files and pages", "follows none", ()),
    "image_bomb": _security("pictures that lie", "describes, never unpacks", (4,)),
}


def table() -> str:
    """The modes as Markdown, group by group, as they stand in the README."""
    return "\n".join(_table_lines())


def _table_lines() -> Iterator[str]:
    for group in Group:
        yield f"### {group.capitalize()}\n"
        yield "| mode | fault | a good client | promises |"
        yield "|---|---|---|---|"
        for name, mode in MODES.items():
            if mode.group is group:
                promises = " ".join(f"P{number}" for number in mode.promises)
                yield f"| `{name}` | {mode.fault} | {mode.duty} | {promises} |"
        yield ""
