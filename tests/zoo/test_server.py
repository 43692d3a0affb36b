"""Each server really has its fault."""

import json
import os
import signal

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult

from tests.waiting import PATIENCE, wait_for
from tests.zoo import honest, modes, server
from tests.zoo.driver import Driver, state
from tests.zoo.faults.protocol import LINE_SEPARATORS
from tests.zoo.modes import MODES, PROGRAMS, command

SMALL = {
    "busy_start": ("--seconds", "0.05"),
    "deep_json": ("--count", "50000"),
    "flood_list_changed": ("--count", "1500"),
    "flood_logs": ("--count", "1500"),
    "flood_notifications": ("--count", "1500"),
    "flood_progress": ("--count", "1500"),
    "flood_requests": ("--count", "1500"),
    "flood_stderr": ("--bytes", "1000000"),
    "flood_updated": ("--count", "1500"),
    "huge_error": ("--bytes", "100000"),
    "huge_instructions": ("--bytes", "100000"),
    "huge_line": ("--bytes", "100000"),
    "huge_line_id_last": ("--bytes", "100000"),
    "huge_notification": ("--bytes", "100000"),
    "list_huge": ("--bytes", "100000"),
    "reorder": ("--seconds", "1"),
    "slow_discover": ("--seconds", "0.1"),
    "slow_exit": ("--seconds", "0.1"),
    "slow_in_both": ("--seconds", "0.1"),
    "silent_on_initialize": ("--seconds", "0.1"),
    "slow_init": ("--seconds", "0.1"),
    "slow_pages": ("--seconds", "0.001"),
    "stderr_endless_line": ("--bytes", "1000000"),
    "stdout_buffer_full": ("--bytes", "1000000"),
    "unique_items": ("--count", "500"),
    "wide_json": ("--count", "5000"),
    "wide_schema": ("--count", "500"),
}
"""Faults made small: here they need only be seen."""
STATELESS = {
    "crash_loop",
    "era_flip",
    "flood_list_changed",
    "pre_answer",
    "sigstop_self",
    "slow_discover",
    "wide_json",
}
"""Modes of both eras that are looked at in the newer one."""
SECRET = "s3cret-value"
LONGER_THAN_A_LINE_TAKES = 0.1

CHECKS = {}


def shows(*names):
    """Say which modes a check is for."""

    def decorate(check):
        CHECKS.update(dict.fromkeys(names, check))
        return check

    return decorate


@pytest.mark.parametrize("name", [name for name in MODES if name not in PROGRAMS])
def test_a_server_shows_its_fault(name, tmp_path):
    options = SMALL.get(name, ())
    with Driver(name, tmp_path, *options, stateless=name in STATELESS, ZOO_SECRET=SECRET) as driver:
        CHECKS.get(name, is_honest_otherwise)(driver)
        if MODES[name].connects and not MODES[name].restarts and not driver.ended:
            driver.call("echo", text="still here")

            assert driver.text == "still here"


def is_honest_otherwise(driver):
    driver.connect()

    assert "echo" in {tool["name"] for tool in driver.tools()}
    assert driver.call("fault")["id"]
    assert driver.text == "no fault"


def connected(driver):
    driver.connect()
    return driver


ENDINGS = {
    "exit_at_start": (1, b"zoo: cannot open the database"),
    "exit_silently": (0, b""),
    "exit_code_3_with_traceback": (3, b"KeyError: 'WEATHER_KEY'"),
    "needs_mcp_lt_2": (1, b"ImportError: cannot import name 'FastMCP' from 'mcp.server'"),
}


@shows(*ENDINGS)
def ends_before_it_reads(driver):
    code, last_line = ENDINGS[driver.mode]

    assert driver.connect() is None
    assert driver.exit_code() == code
    assert driver.stderr.rpartition(b"\n")[0].endswith(last_line)


@shows("usage_on_stdout")
def prints_its_usage(driver):
    assert driver.line().startswith(b"usage:")
    assert driver.exit_code() == 2


@shows("never_init", "buffered_stdout")
def stays_silent(driver):
    driver.post("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})

    assert driver.line(LONGER_THAN_A_LINE_TAKES) is None
    assert driver.lives()


@shows("login_prompt")
def asks_and_waits(driver):
    assert b"/device" in driver.line()
    stays_silent(driver)


@shows("slow_discover")
def keeps_to_the_era_of_the_probe(driver):
    probe = driver.post("server/discover")
    refused = driver.request("initialize", {"protocolVersion": "2025-11-25"})

    assert refused["error"]["data"]["supported"] == ["2026-07-28"]
    assert driver.answer(probe)["result"]["supportedVersions"]


@shows("silent_on_discover")
def ignores_the_probe(driver):
    probe = driver.probe()
    connected(driver)

    assert [json.loads(line)["id"] for line in driver.heard] == [probe + 1]


@shows("exits_on_discover")
def exits_on_the_probe(driver):
    assert driver.answer(driver.probe()) is None
    assert driver.exit_code() == 1
    assert b"server/discover" in driver.stderr


@shows("discover_wrong_code", "discover_bad_result", "discover_legacy_only", "good_legacy")
def answers_the_probe_oddly(driver):
    answer = driver.answer(driver.probe())

    assert (
        answer.get("error", {}).get("code") in {-32601, -32602}
        or answer["result"] == {}
        or answer["result"]["supportedVersions"] == ["2025-11-25"]
    )
    is_honest_otherwise(driver)


@shows("good_modern")
def refuses_the_handshake(driver):
    assert driver.request("initialize", {})["error"]["code"] == -32022
    is_honest_otherwise(driver)


@shows("init_error", "bad_version_modern", "echo_secret")
def refuses_to_connect(driver):
    error = driver.connect()["error"]

    assert error["code"] in {-32603, -32022}
    assert (SECRET in error["message"]) == (SECRET.encode() in driver.stderr)


@shows("init_wrong_shape", "bad_version", "old_version")
def answers_the_handshake_oddly(driver):
    version = driver.connect()["result"].get("protocolVersion")

    assert version in {None, "1999-01-01", "2024-11-05"}


@shows("exit_in_handshake")
def exits_on_the_first_request(driver):
    assert driver.connect() is None
    assert driver.exit_code() == 1


@shows("late_tools")
def has_tools_later(driver):
    assert connected(driver).tools() == []
    assert driver.notification("notifications/tools/list_changed")
    assert driver.tools()


@shows("roots_at_once")
def asks_for_roots(driver):
    assert connected(driver).notification("roots/list")


@shows("roots_before_list")
def lists_when_its_question_is_answered(driver):
    listing = connected(driver).post("tools/list")
    driver.notification("roots/list")
    driver.reply("zoo-roots", error={"code": -32601, "message": "no roots here"})

    assert driver.answer(listing)["result"]["tools"]


@shows("flood_requests")
def asks_many_different_things(driver):
    connected(driver).call("fault")
    questions = {message.get("id") for message in map(json.loads, driver.heard)}

    assert len(questions) > 1500


LINES = {
    "batch_array": lambda line, _id: line.startswith(b"[{"),
    "two_on_a_line": lambda line, _id: line.count(b'"jsonrpc"') == 2,
    "pretty_json": lambda line, _id: line == b"{",
    "lone_surrogate": lambda line, _id: rb"\ud800" in line,
    "big_int": lambda line, _id: b"9" * 5000 in line,
    "deep_json": lambda line, _id: b"[" * 50000 in line,
    "bad_utf8_answer": lambda line, _id: b"\xff" in line,
    "unicode_line_separators": lambda line, _id: LINE_SEPARATORS.encode() in line,
    "neither": lambda line, _id: json.loads(line).keys() == {"jsonrpc", "id"},
    "both": lambda line, _id: {"result", "error"} <= json.loads(line).keys(),
    "result_wrong_type": lambda line, _id: json.loads(line)["result"] == "no fault",
    "result_null": lambda line, _id: json.loads(line)["result"] is None,
    "error_wrong_shape": lambda line, _id: json.loads(line)["error"] == "boom",
    "null_id_error": lambda line, _id: json.loads(line)["id"] is None,
    "id_as_string": lambda line, id_: json.loads(line)["id"] == str(id_),
    "id_as_float": lambda line, id_: b'"id":%d.0' % id_ in line,
    "missing_jsonrpc": lambda line, _id: b"jsonrpc" not in line,
    "duplicate_keys": lambda line, _id: line.count(b'"result":{') == 2,
    "bad_content": lambda line, _id: json.loads(line)["result"]["content"][0] is None,
    "empty_result": lambda line, _id: json.loads(line)["result"] == {},
    "huge_line": lambda line, _id: len(line) > 100_000,
    "huge_line_id_last": lambda line, id_: line.endswith(b'"id":%d}' % id_),
    "huge_error": lambda line, _id: len(json.loads(line)["error"]["message"]) == 100_000,
    "wide_json": lambda line, _id: (
        len(json.loads(line)["result"]["structuredContent"]["items"]) > 4
    ),
    "ansi_escapes": lambda line, _id: rb"\u001b]52" in line,
    "cancels_ours": lambda line, _id: b"notifications/cancelled" in line,
    "bad_progress": lambda line, _id: b"nobody's" in line,
    "bad_notifications": lambda line, _id: b'"params":5' in line,
    "huge_notification": lambda line, _id: len(line) > 100_000,
    "stdout_buffer_full": lambda line, _id: b"notifications/zoo" in line,
    "flood_notifications": lambda line, _id: b"notifications/zoo" in line,
    "flood_logs": lambda line, _id: b"notifications/message" in line,
    "flood_updated": lambda line, _id: b"resources/updated" in line,
    "flood_progress": lambda line, _id: b"notifications/progress" in line,
    "mrtr_loop": lambda line, _id: json.loads(line)["result"]["resultType"] == "input_required",
    "mrtr_loop_state_only": lambda line, _id: b"inputRequests" not in line,
    "mrtr_phish": lambda line, _id: b"xn--pple" in line,
    "elicit_phish": lambda line, _id: b"card_number" in line,
    "undeclared_sampling": lambda line, _id: b"sampling/createMessage" in line,
    "unknown_request": lambda line, _id: b"zoo/give" in line,
    "resource_link": lambda line, _id: b"file:///etc/passwd" in line,
    "image_bomb": lambda line, _id: b'"data":"%%%"' in line,
    "unique_items": lambda line, _id: b'{"number":499}' in line,
    "regex_dos": lambda line, _id: b"aaaa!" in line,
    "output_mismatch": lambda line, _id: b"no integer" in line,
}


@shows(*LINES)
def sends_such_a_line(driver):
    request = connected(driver).post_call("fault")

    assert LINES[driver.mode](driver.line(), request)


@shows("dup_answer")
def answers_twice(driver):
    request = connected(driver).post_call("echo", text="right")

    assert driver.answer(request)["result"]["content"][0]["text"] == "right"
    assert driver.answer(request)["result"]["content"][0]["text"] == "FORGED"


@shows("unknown_id_answer", "pre_answer")
def answers_what_nobody_asked(driver):
    connected(driver).call("echo", text="right")

    assert driver.text == "right"
    assert sum(b"FORGED" in line for line in driver.heard) in {8, 2000}


@shows("reorder")
def answers_the_last_first(driver):
    requests = [connected(driver).post_call("nonce", n=number) for number in range(3)]
    answers = [driver.find(lambda message: "id" in message)["id"] for _ in requests]

    assert answers == sorted(answers, reverse=True)


@shows("same_id_request")
def asks_under_our_id(driver):
    request = connected(driver).post_call("fault")

    assert driver.answer(request)["method"] == "ping"
    driver.reply(request, result={})
    assert driver.answer(request)["result"]


@shows("never_answer", "answers_after_close")
def leaves_the_call_open(driver):
    request = connected(driver).post_call("fault")
    driver.call("echo", text="meanwhile")

    assert all(json.loads(line).get("id") != request for line in driver.heard)


@shows("late_answer")
def answers_when_cancelled(driver):
    request = connected(driver).post_call("fault")
    driver.send("notifications/cancelled", {"requestId": request})

    assert driver.answer(request)["result"]["content"][0]["text"] == "FORGED"
    assert driver.ledger.cancelled == [str(request)]


@shows("bom", "garbage_before", "empty_lines")
def begins_oddly(driver):
    driver.post("ping")
    first = driver.line()

    assert first in {b"", b"Weather server v1.2"} or first.startswith(b"\xef\xbb\xbf{")
    is_honest_otherwise(driver)


@shows("garbage_between", "garbage_binary", "zero_bytes")
def writes_noise_between(driver):
    is_honest_otherwise(driver)
    assert any(not line.startswith(b'{"jsonrpc"') for line in driver.heard)


@shows("crlf")
def ends_lines_its_own_way(driver):
    is_honest_otherwise(driver)
    assert all(line.endswith(b"\r") for line in driver.heard)


@shows("endless_line")
def never_ends_its_line(driver):
    connected(driver).post_call("fault")
    for _ in range(64):
        assert b"\n" not in os.read(driver.process.stdout.fileno(), 65536)
    driver.process.stdout.close()
    assert driver.exit_code() == 0


@shows("huge_instructions")
def instructs_at_length(driver):
    assert len(driver.connect()["result"]["instructions"]) > 99_000


@shows("list_huge", "tools_10k", "357kb_schemas")
def lists_at_length(driver):
    connected(driver).tools()
    assert len(driver.heard[-1]) > 100_000


@shows("flood_list_changed")
def floods_the_listening_stream(driver):
    stream = connected(driver).post(
        "subscriptions/listen", {"notifications": {"toolsListChanged": True}}
    )
    driver.call("fault")
    floods = [line for line in driver.heard if b"tools/list_changed" in line]

    assert len(floods) == 1500
    assert all(b'subscriptionId":%d' % stream in line for line in floods)


@shows("flood_stderr", "stderr_endless_line", "stderr_binary")
def floods_stderr(driver):
    is_honest_otherwise(driver)
    assert len(driver.stderr) >= 4096


@shows("relist_loop")
def says_changed_after_every_list(driver):
    for _ in range(2):
        connected(driver).tools()
        assert driver.notification("notifications/tools/list_changed")


@shows("listen_ends", "listen_refused")
def ends_the_stream(driver):
    stream = connected(driver).post("subscriptions/listen", {"notifications": {}})

    assert driver.answer(stream).keys() & {"result", "error"}


@shows("listen_silent")
def never_acknowledges(driver):
    connected(driver).post("subscriptions/listen", {"notifications": {}})
    driver.call("echo", text="meanwhile")

    assert not any(b"acknowledged" in line for line in driver.heard)


TOOL_NAMES = {
    "tools_bad_entries": "odd_description",
    "tools_bad_schema": "bad_pattern",
    "very_long_tool_names": "n" * 300 + "_a",
    "unicode_names": "検索",
    "homoglyph": "ec\u200bho",
}


@shows(*TOOL_NAMES)
def lists_odd_tools(driver):
    names = [tool.get("name") for tool in connected(driver).tools() if isinstance(tool, dict)]

    assert TOOL_NAMES[driver.mode] in names
    assert "echo" in names


@shows("tools_duplicate")
def lists_twins(driver):
    assert [tool["name"] for tool in connected(driver).tools()].count("echo") == 3


@shows("paged", "slow_pages", "cursor_empty_string")
def lists_in_pages(driver):
    page = connected(driver).request("tools/list")["result"]
    names = [tool["name"] for tool in page["tools"]]
    while "nextCursor" in page:
        page = driver.request("tools/list", {"cursor": page["nextCursor"]})["result"]
        names += [tool["name"] for tool in page["tools"]]

    assert len(names) == len(set(names)) == len(honest.TOOLS)


@shows("cursor_loop", "cursor_endless", "cursor_wrong_type")
def lists_for_ever(driver):
    first = connected(driver).request("tools/list")["result"]["nextCursor"]
    if isinstance(first, str):
        for cursor in (first, "b" if first == "a" else "2"):
            assert "nextCursor" in driver.request("tools/list", {"cursor": cursor})["result"]


@shows("list_error", "list_wrong_shape", "list_missing")
def cannot_list(driver):
    answer = connected(driver).request("tools/list")

    assert not isinstance(answer.get("result", {}).get("tools"), list)


@shows("list_never", "prompts_never")
def never_lists(driver):
    kind = "tools" if driver.mode == "list_never" else "prompts"
    connected(driver).post(f"{kind}/list")
    driver.call("echo", text="meanwhile")

    assert not any(b'"%s":[' % kind.encode() in line for line in driver.heard)


@shows("prompts_every_other")
def lists_prompts_at_the_second_request(driver):
    connected(driver).post("prompts/list")

    assert driver.request("prompts/list")["result"]["prompts"]


@shows("list_error_later")
def lists_only_once(driver):
    is_honest_otherwise(driver)
    assert "error" in driver.request("tools/list")


@shows("other_lists_fail", "tools_only")
def has_tools_only(driver):
    is_honest_otherwise(driver)
    assert "error" in driver.request("resources/list")


@shows("sigstop_self", "sigstop_in_call", "sigstop_idle")
def stops(driver):
    connected(driver).post_call("fault")

    await_state(driver.process.pid, "T")


@shows("deaf", "deaf_in_call", "deaf_idle", "closes_stdin", "closes_stdin_idle")
def hears_no_more(driver):
    connected(driver).post_call("fault")
    if driver.mode.endswith("idle"):
        driver.line()
    driver.post_call("echo", text="anybody?")

    assert driver.line(LONGER_THAN_A_LINE_TAKES) is None
    assert driver.lives()


@shows("closes_stdout", "closes_stdout_idle")
def speaks_no_more(driver):
    connected(driver).post_call("fault")

    assert driver.unfinished() == b""
    assert driver.lives()


CODES = {
    "crash_loop": 1,
    "crash_idle": 1,
    "crash_on_list": 1,
    "exit_mid_call": 7,
    "oom_killed": -signal.SIGKILL,
    "orphan_holds_pipes": 1,
    "writes_then_dies": 0,
}


@shows(*CODES)
def exits(driver):
    if driver.mode == "crash_on_list":
        connected(driver).post("tools/list")
    elif driver.mode == "crash_loop":
        connected(driver)
    else:
        connected(driver).post_call("fault")

    assert driver.exit_code() == CODES[driver.mode]


@shows("crash_after_calls")
def exits_in_the_fourth_call(driver):
    calls = [connected(driver).call("echo", text=str(number)) for number in range(3)]

    assert all("result" in answer for answer in calls)
    assert driver.call("echo", text="4") is None
    assert driver.exit_code() == 1


@shows("half_answer")
def exits_in_its_answer(driver):
    connected(driver).post_call("fault")

    assert driver.unfinished().startswith(b'{"jsonrpc"')


@shows("ping_unanswered", "exits_on_ping")
def answers_no_health_check(driver):
    ping = connected(driver).post("ping")
    if driver.mode == "exits_on_ping":
        assert driver.exit_code() == 1
    else:
        driver.call("echo", text="meanwhile")
        assert all(json.loads(line)["id"] != ping for line in driver.heard)


@shows("exit_leave_child", "daemon_child", "daemon_child_clean_env")
def has_a_child(driver):
    is_honest_otherwise(driver)
    (child,) = driver.ledger.children
    os.kill(child, signal.SIGTERM)

    assert state(child)
    if driver.mode != "exit_leave_child":
        assert os.getsid(child) != os.getsid(driver.process.pid)


@shows("fork_bomb_small")
def has_many_children(driver):
    is_honest_otherwise(driver)
    assert len([child for child in driver.ledger.children if state(child)]) == 20


SCHEMAS = {
    "anyof_bomb": b'"level24"',
    "ref_remote": b'"$ref":"http://127.0.0.1:9/schema.json"',
    "ref_loop": b'"b":{"$ref":"#/$defs/a"}',
    "deep_schema": b'{"anyOf":[' * 400,
    "wide_schema": b'{"const":499}',
    "poison": b"<IMPORTANT>",
}


@shows(*SCHEMAS)
def lists_such_a_schema(driver):
    is_honest_otherwise(driver)
    assert any(SCHEMAS[driver.mode] in line for line in driver.heard)


@shows("rug_pull", "rug_pull_silent")
def changes_what_it_said(driver):
    before = connected(driver).tools()[0]["description"]
    driver.call("fault")

    assert driver.tools()[0]["description"] != before
    said = any(b"list_changed" in line for line in driver.heard)
    assert said == (driver.mode == "rug_pull")


@shows("env_dump", "fd_dump")
def tells_what_it_was_given(driver):
    given = connected(driver).call("fault")["result"]["structuredContent"]["result"]

    assert sorted(given) in (["0", "1", "2"], ["PATH", "ZOO_DIR", "ZOO_SECRET"])


@shows("prints_secret")
def gives_its_secret_away(driver):
    error = connected(driver).call("fault")["error"]

    assert SECRET in error["message"]
    assert SECRET.encode() in driver.stderr
    assert SECRET.encode() in driver.heard[-2]


def await_state(pid, letter):
    wait_for(lambda: state(pid) == letter)  # the kernel tells nobody but the parent's debugger


@pytest.mark.parametrize("name", ["good", "answers_after_close", "slow_exit", "closes_stdout"])
def test_a_polite_server_goes_when_its_stdin_ends(name, tmp_path):
    with Driver(name, tmp_path, *SMALL.get(name, ())) as driver:
        connected(driver).post_call("fault")
        driver.close_stdin()

        assert driver.exit_code() == 0


def test_a_server_that_ignores_the_end_of_stdin_needs_a_signal(tmp_path):
    with Driver("ignores_eof", tmp_path) as driver:
        connected(driver).close_stdin()

        assert driver.line(LONGER_THAN_A_LINE_TAKES) is None
        assert driver.lives()
        driver.process.terminate()
        assert driver.exit_code() == -signal.SIGTERM


def test_a_stubborn_server_ignores_signals_too(tmp_path):
    with Driver("stubborn", tmp_path) as driver:
        connected(driver).close_stdin()
        driver.process.terminate()

        assert driver.line(LONGER_THAN_A_LINE_TAKES) is None
        assert driver.lives()


def test_a_child_outlives_its_polite_parent(tmp_path):
    with Driver("exit_leave_child", tmp_path) as driver:
        connected(driver).close_stdin()

        assert driver.exit_code() == 0
        assert state(*driver.ledger.children)


def test_with_once_only_the_first_start_is_bad(tmp_path):
    with Driver("exit_at_start", tmp_path, "--once") as driver:
        assert driver.exit_code() == 1
    with Driver("exit_at_start", tmp_path, "--once") as driver:
        is_honest_otherwise(driver)

    assert len(driver.ledger.starts) == len(set(driver.ledger.pids)) == 2


def test_an_era_flips_from_start_to_start(tmp_path):
    for stateless in (True, False):
        with Driver("era_flip", tmp_path, stateless=stateless) as driver:
            is_honest_otherwise(driver)


def test_an_honest_server_wants_the_handshake_first(tmp_path):
    with Driver("good", tmp_path) as driver:
        assert driver.request("tools/list")["error"]["code"] == -32600


def test_an_honest_server_wants_the_version_in_every_stateless_request(tmp_path):
    with Driver("good", tmp_path, stateless=True) as driver:
        driver.connect()
        driver.stateless = False

        assert driver.request("tools/list")["error"]["code"] == -32602


@pytest.mark.parametrize("stateless", [False, True])
def test_sleeps_run_side_by_side_and_can_be_cancelled(stateless, tmp_path):
    with Driver("good", tmp_path, stateless=stateless) as driver:
        long = connected(driver).post_call("sleep", seconds=60)
        short = driver.post_call("sleep", seconds=0.01)
        assert driver.answer(short)
        driver.send("notifications/cancelled", {"requestId": long})
        cancelled = driver.call("cancelled")["result"]["structuredContent"]["result"]

        assert cancelled == [long]
        assert driver.ledger.calls == ["sleep", "sleep", "cancelled"]


def test_a_count_is_kept_over_starts(tmp_path):
    for expected in (1, 2):
        with Driver("good", tmp_path) as driver:
            counted = connected(driver).call("count")["result"]["structuredContent"]

            assert counted == {"result": expected}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_sdk_finds_no_fault_with_the_honest_server(mode, tmp_path):
    async def consent(_context, _params):
        return ElicitResult(action="accept", content={"name": "Ada"})

    program, *arguments = command("good")
    parameters = StdioServerParameters(
        command=program, args=arguments, env={"ZOO_DIR": str(tmp_path)}
    )
    with anyio.fail_after(PATIENCE):
        async with Client(parameters, mode=mode, elicitation_callback=consent) as client:
            tools = (await client.list_tools()).tools
            added = await client.call_tool("add", {"a": 1, "b": 2})
            asked = await client.call_tool("ask", {})
            kinds = [block.type for block in (await client.call_tool("blocks", {})).content]
            resources = (await client.list_resources()).resources
            read = await client.read_resource("zoo://item/7")
            prompt = await client.get_prompt("greet", {"name": "Ada"})

    assert len(tools) == len(honest.TOOLS)
    assert added.structured_content == {"result": 3}
    assert json.loads(asked.content[0].text)["content"] == {"name": "Ada"}
    assert kinds == ["text", "image", "audio", "resource_link", "resource"]
    assert [resource.uri for resource in resources] == ["zoo://text", "zoo://blob"]
    assert read.contents[0].text == "7"
    assert prompt.messages[0].content.text == "Hello, Ada"


def test_every_mode_has_a_server_and_every_server_a_mode():
    for name in MODES:
        if name not in PROGRAMS:
            found = server.find(name)
            home = found.__module__.rpartition(".")[2]

            assert home in {MODES[name].group, "honest"}
            assert found.era == MODES[name].era

    assert honest.Honest.modes.keys() == MODES.keys() - PROGRAMS.keys()


def test_the_readme_lists_every_mode():
    assert modes.README.read_text().endswith(modes.table())
