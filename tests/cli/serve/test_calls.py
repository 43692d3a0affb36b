"""Past calls at the prompt."""

import json


def test_calls_are_listed_filtered_and_shown(multitap, configure, home):
    configure(zoo="good")
    settings = home / "multitap.toml"
    settings.write_text('record = "all"\n' + settings.read_text())
    multitap(f"-c {settings} call zoo_echo text=hello")

    listed = multitap("calls")
    found = multitap("calls --json tool:ech* status:ok")
    shown = multitap(f"calls --json --show {found.json[0]['exchange']}")
    nothing = multitap("calls status:error")

    assert listed.lines[0].split()[:4] == ["TIME", "SERVER", "TOOL", "STATUS"]
    assert [record["tool"] for record in found.json] == ["echo"]
    assert json.loads(shown.json["arguments"]) == {"text": "hello"}
    assert (nothing.out, nothing.err) == ("", "no calls match\n")


def test_without_recording_nothing_of_a_call_is_kept(multitap, configure):
    configure(zoo="good")
    multitap("call zoo_echo text=hello")

    found = multitap("calls --json").json
    missing = multitap("calls --show 0123456789abcdef")

    assert found[0]["exchange"] is None
    assert missing.code == 1
    assert "record =" in missing.err


def test_a_filter_that_makes_no_sense_is_refused(multitap):
    ended = multitap("calls colour:red")

    assert ended.code == 2
    assert "no key 'colour'" in ended.err


def test_past_events_are_filtered(multitap, configure):
    configure(crashing="exit_at_start", zoo="good")
    multitap("status")

    worse = multitap("logs --filter 'level:error kind:state'")
    one = multitap("logs zoo --json --filter kind:state")

    assert "crashing" in worse.out
    assert len(worse.lines) == 1
    assert {json.loads(line)["server"] for line in one.lines} == {"zoo"}
