"""The result of a call, as text, as blocks and in pieces."""

import base64
import gc
import struct
import tracemalloc

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multitap.errors import BadAnswer, BadArguments, UnknownName
from multitap.results import (
    AudioBlock,
    EmbeddedResource,
    ImageBlock,
    KeptResults,
    LongText,
    ResourceLink,
    TextBlock,
    ToolResult,
    UnknownBlock,
    cap,
)
from multitap.results.blocks import dimensions
from multitap.results.result import parse_sound

LONG = "some words\n" * 10_000
words = st.text(st.characters(codec="utf-8"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
kinds = st.sampled_from(["text", "image", "audio", "resource_link", "resource", "video"])
odd_blocks = json_values | st.fixed_dictionaries(
    {"type": kinds},
    optional=dict.fromkeys(
        ("text", "data", "mimeType", "uri", "name", "resource", "size"), json_values
    ),
)


def result(*content, **fields):
    return ToolResult(
        msgspec.json.encode({"content": content, **fields}), server="files", tool="read"
    )


def text(value):
    return {"type": "text", "text": value}


def encoded(data):
    return base64.b64encode(data).decode()


def png(width, height):
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height)


def jpeg(width, height):
    profile = b"\xff\xe2" + struct.pack(">H", 60_002) + bytes(60_000)
    frame = struct.pack(">BBHBHH", 0xFF, 0xC2, 17, 8, height, width)
    return b"\xff\xd8" + profile + b"\xff" + frame + bytes(10)


def webp(kind, payload):
    return b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0" + payload


@given(st.lists(words | json_values))
def test_e16_every_text_block_is_in_the_text(values):
    content = [text(value) if isinstance(value, str) else {"type": value} for value in values]

    shown = result(*content).text

    assert all(block["text"] in shown for block in content if "text" in block)


def test_text_blocks_are_joined_by_line_breaks():
    answer = result(text("one"), text("two\n"), text(""))

    assert answer.text == answer.output == "one\ntwo\n\n"
    assert answer.blocks == (TextBlock("one"), TextBlock("two\n"), TextBlock(""))


def test_a_result_is_not_decoded_until_somebody_looks_inside():
    answer = ToolResult(b"no JSON at all", server="files", tool="read")

    assert answer.raw == b"no JSON at all"
    assert repr(answer) == "<ToolResult files/read, 14 bytes>"
    with pytest.raises(BadAnswer, match="files: the answer of 'read' cannot be read"):
        _ = answer.is_error


def test_a_raw_slice_of_an_envelope_is_read_like_bytes():
    raw = msgspec.json.decode(
        b'{"result": {"content": [{"type": "text", "text": "x"}]}}', type=dict[str, msgspec.Raw]
    )["result"]

    assert ToolResult(raw).text == "x"


@pytest.mark.parametrize("value", [False, None, "true", 1, "", []])
def test_only_a_true_is_error_makes_a_failure(value):
    answer = result(text("fine"), isError=value)

    assert answer.success
    assert answer.error is None


def test_a_failure_has_the_words_of_the_tool():
    answer = result(text("no such file"), isError=True)

    assert not answer.success
    assert answer.error == "no such file"


def test_a_failure_without_words_still_has_an_error():
    assert result(isError=True).error


def test_a_protocol_error_is_a_failed_result_with_its_code_and_data():
    answer = ToolResult.from_error("unknown \ud800 tool", code=-32602, data={"a": 1}, server="s")

    assert answer.is_error
    assert answer.error == "unknown ? tool"
    assert (answer.code, answer.data) == (-32602, {"a": 1})
    assert answer.blocks == (TextBlock("unknown ? tool"),)


def test_structured_content_is_the_text_where_there_is_no_other():
    answer = result(structuredContent={"sum": 3})

    assert answer.structured == {"sum": 3}
    assert answer.text == '{"sum":3}'


def test_structured_content_does_not_replace_the_text():
    answer = result(text("three"), structuredContent={"sum": 3})

    assert answer.text == "three"


def test_what_is_not_there_is_none_or_empty():
    answer = ToolResult(b"{}")

    assert (answer.text, answer.blocks, answer.structured, answer.meta) == ("", (), None, {})


@pytest.mark.parametrize(
    ("raw", "meta"), [(b'{"_meta": {"a": 1}}', {"a": 1}), (b'{"_meta": [1]}', {})]
)
def test_meta_is_an_object_or_empty(raw, meta):
    assert ToolResult(raw).meta == meta


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b'{"content":[{"type":"text","text":"\xff"}]}', id="bad UTF-8"),
        pytest.param(b'{"content":[{"type":"text","text":"\\ud800"}]}', id="lone surrogate"),
        pytest.param(b'{"content":[{"type":"text","text":"\\ud800x"}]}', id="broken pair"),
        pytest.param(b'{"content":[{"type":"text"', id="cut"),
        pytest.param(b'["content"]', id="not an object"),
        pytest.param(b'{"content":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="deep"),
        pytest.param(b'{"structuredContent":"\xff"}', id="bad UTF-8 in structured content"),
    ],
)
def test_an_answer_that_cannot_be_decoded_is_a_bad_answer(raw):
    with pytest.raises(BadAnswer) as caught:
        _ = ToolResult(raw, server="files", tool="read").text

    assert caught.value.server == "files"


@given(st.dictionaries(st.sampled_from(["content", "isError", "_meta"]), json_values))
def test_no_shape_of_an_answer_raises(fields):
    answer = ToolResult(msgspec.json.encode(fields))

    assert isinstance(answer.text, str)
    assert isinstance(answer.meta, dict)
    assert answer.success is (fields.get("isError") is not True)


@given(st.lists(odd_blocks, max_size=4))
def test_no_shape_of_a_block_raises_and_none_is_lost(blocks):
    answer = result(*blocks)

    assert len(answer.blocks) == len(blocks)
    assert isinstance(answer.text, str)


@given(st.lists(odd_blocks, max_size=4))
def test_a_short_answer_never_has_a_long_text(blocks):
    answer = result(*blocks)

    assert len(answer.text) <= 20 * len(answer.raw)


def test_an_image_is_described_and_its_bytes_stay_available():
    data = png(640, 480) + bytes(2000)
    answer = result({"type": "image", "mimeType": "image/png", "data": encoded(data)})

    (image,) = answer.blocks

    assert isinstance(image, ImageBlock)
    assert (image.data, image.size) == (data, len(data))
    assert (image.width, image.height) == (640, 480)
    assert answer.text == "[image: image/png, 2.0 KB, 640x480 pixels]"


def test_an_image_of_unknown_format_is_described_without_its_dimensions():
    answer = result({"type": "image", "mimeType": "image/svg+xml", "data": encoded(b"<svg/>")})

    assert answer.text == "[image: image/svg+xml, 0.0 KB]"


@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param(lambda text: text.rstrip("="), id="no padding"),
        pytest.param(lambda text: text.replace("+", "-").replace("/", "_"), id="URL-safe"),
        pytest.param(lambda text: text[:20] + "\r\n" + text[20:] + "\n", id="line breaks"),
    ],
)
def test_every_spelling_of_base64_is_understood(spelling):
    data = png(3, 4) + bytes(range(251, 256)) * 3

    (image,) = result({"type": "image", "data": spelling(encoded(data))}).blocks

    assert (image.data, image.size, image.width) == (data, len(data), 3)


def test_audio_is_described_by_type_and_size():
    answer = result({"type": "audio", "mimeType": "audio/wav", "data": encoded(bytes(1536))})

    assert answer.text == "[audio: audio/wav, 1.5 KB]"
    assert isinstance(answer.blocks[0], AudioBlock)
    assert answer.blocks[0].data == bytes(1536)


def test_a_link_is_described_by_address_and_name():
    answer = result(
        {
            "type": "resource_link",
            "uri": "file:///a.txt",
            "name": "a",
            "mimeType": "text/plain",
            "size": 2048,
            "description": "notes",
        }
    )

    assert answer.text == "[resource link: file:///a.txt, a, text/plain, 2.0 KB]"
    assert answer.blocks == (ResourceLink("file:///a.txt", "a", None, "notes", "text/plain", 2048),)


def test_an_embedded_text_is_part_of_the_text():
    answer = result(
        {"type": "resource", "resource": {"uri": "file:///a", "text": "x\ny", "mimeType": "a/b"}}
    )

    assert answer.text == "[resource: file:///a, a/b]\nx\ny"
    assert answer.blocks == (EmbeddedResource("file:///a", "a/b", text="x\ny"),)
    assert answer.blocks[0].data is None


def test_embedded_bytes_are_described_and_stay_available():
    answer = result(
        {"type": "resource", "resource": {"uri": "file:///a", "blob": encoded(bytes(512))}}
    )

    assert answer.text == "[resource: file:///a, 0.5 KB]"
    assert answer.blocks[0].data == bytes(512)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "video", "data": ""}, "[video: unknown kind, 0.0 KB]"),
        ({"type": "text"}, "[text: without a text, 0.0 KB]"),
        ({"type": "image", "data": "?"}, "[image: its data is not base64, 0.0 KB]"),
        ({"type": "image", "data": "AAAAA"}, "[image: its data is not base64, 0.0 KB]"),
        ({"type": "audio"}, "[audio: its data is not base64, 0.0 KB]"),
        ({"type": "resource_link"}, "[resource_link: without a uri, 0.0 KB]"),
        ({"type": "resource"}, "[resource: without a resource, 0.0 KB]"),
        ({"type": "resource", "resource": {}}, "[resource: without a uri, 0.0 KB]"),
        (
            {"type": "resource", "resource": {"uri": "a:"}},
            "[resource: with neither text nor base64, 0.0 KB]",
        ),
        ({"type": 5}, "[content: without a type, 0.0 KB]"),
        ("words", "[content: not an object, 0.0 KB]"),
    ],
)
def test_a_malformed_block_is_named_and_disturbs_no_other(block, words):
    answer = result(text("before"), block, text("after"))

    assert answer.text == f"before\n{words}\nafter"
    assert isinstance(answer.blocks[1], UnknownBlock)
    assert msgspec.json.decode(answer.blocks[1].raw) == block


def test_content_that_is_no_list_is_one_unknown_block():
    assert ToolResult(b'{"content": "hello"}').text == "[content: not an object, 0.0 KB]"


def test_a_description_is_one_line_whatever_the_server_puts_into_it():
    answer = result({"type": "resource_link", "uri": "a:\n\x1b[2Jb", "name": "n" * 1000})

    assert "\n" not in answer.text
    assert "\x1b" not in answer.text
    assert len(answer.text) < 300


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(png(300, 200), id="png"),
        pytest.param(b"GIF89a" + struct.pack("<HH", 300, 200), id="gif"),
        pytest.param(jpeg(300, 200), id="jpeg with a profile"),
        pytest.param(webp(b"VP8 ", bytes(6) + struct.pack("<HH", 300, 200)), id="webp lossy"),
        pytest.param(
            webp(b"VP8L", b"\x2f" + (299 | 199 << 14).to_bytes(4, "little")), id="webp lossless"
        ),
        pytest.param(
            webp(b"VP8X", bytes(4) + (299).to_bytes(3, "little") + (199).to_bytes(3, "little")),
            id="webp extended",
        ),
    ],
)
def test_dimensions_are_read_from_the_head(head):
    assert dimensions(head) == (300, 200)


@given(
    st.sampled_from(
        [png(300, 200), jpeg(3, 2), b"GIF89a\1\1\1\1", *(webp(k, bytes(20)) for k in (b"VP8 ",))]
    ),
    st.integers(0, 60),
    st.binary(max_size=30),
)
def test_a_damaged_head_has_some_dimensions_or_none(head, cut, tail):
    size = dimensions(head[:cut] + tail)

    assert size is None or all(size)


def test_a_jpeg_whose_size_comes_late_is_found():
    answer = result({"type": "image", "mimeType": "image/jpeg", "data": encoded(jpeg(30, 20))})

    assert answer.text.endswith("30x20 pixels]")


@given(st.text("ab \n", max_size=2000) | words, st.integers(100, 500))
def test_pages_join_to_the_whole_and_none_is_longer_than_the_cap(whole, limit):
    kept = KeptResults().keep(LongText.of(whole), limit)

    pages = [kept.page(number) for number in range(1, kept.pages + 1)]

    assert "".join(pages) == whole
    assert all(len(page) <= limit for page in pages)


@given(st.text("ab \n", min_size=101, max_size=3000), st.integers(100, 500))
def test_e11_a_cut_text_fits_the_cap_with_its_note(whole, limit):
    capped = cap(whole, limit, result_id="k3f9ab")

    assert len(capped.text) <= limit
    if len(whole) <= limit:
        assert (capped.text, capped.missing) == (whole, 0)
    else:
        head, _, note = capped.text.rpartition("\n")
        assert whole.startswith(head)
        assert note == (
            f'… {capped.missing:,} more characters; the rest: result "k3f9ab" '
            f"page 2 of {len(capped.ends):,}"
        )


@pytest.mark.parametrize(
    ("unit", "end"),
    [
        pytest.param("some words in a line\n", "line", id="line"),
        pytest.param("some words without a line break ", " ", id="word"),
        pytest.param("x", "x", id="nothing to cut at"),
    ],
)
def test_a_text_is_cut_at_the_best_boundary_there_is(unit, end):
    head = cap(unit * 1000, 500).text.rpartition("\n")[0]

    assert head.endswith(end)
    assert len(head) > 200


def test_a_text_too_large_to_keep_says_so():
    kept = KeptResults(size=1000).keep(LongText.of("x" * 2000), 100)

    assert kept.id is None
    assert kept.shown.endswith("more characters, too much to keep")


def test_a_cap_without_room_for_the_note_is_refused():
    with pytest.raises(ValueError, match="no room"):
        cap("x", 99)


def test_a_capped_result_shows_the_beginning_and_says_where_the_rest_is():
    kept = KeptResults()
    whole = "".join(f"line {number}\n" for number in range(1000))
    full = result(text(whole))

    view = full.capped(500, kept)

    assert view.truncated
    assert len(view.text) <= 500
    assert view.text == view.output
    assert f'result "{view.result_id}" page 2 of' in view.text
    assert kept.result(view.result_id).text == whole
    assert (view.raw, view.blocks) == (full.raw, full.blocks)
    assert not full.truncated
    assert full.text == whole


def test_the_error_of_a_capped_failure_is_cut_too():
    view = result(text("x" * 10_000), isError=True).capped(200, KeptResults())

    assert len(view.error) <= 200


def test_a_short_result_is_not_touched_by_a_cap():
    answer = result(text("x" * 100))

    assert answer.capped(100, kept := KeptResults()).text == answer.text
    assert len(kept) == 0


def test_only_as_many_results_are_kept_as_agreed():
    kept = KeptResults(count=2)
    ids = [kept.keep(LongText.of("x" * 200), 100).id for _ in range(2)]
    kept.result(ids[0])

    newest = kept.keep(LongText.of("y" * 200), 100).id

    assert kept.result(ids[0]).text == "x" * 200
    assert kept.result(newest).text == "y" * 200
    with pytest.raises(UnknownName, match=ids[1]):
        kept.result(ids[1])


def test_only_as_much_memory_is_held_as_agreed():
    kept = KeptResults(size=5000)

    ids = [kept.keep(LongText.of("x" * 2000), 100).id for _ in range(5)]

    assert len(kept) == 2
    assert kept.result(ids[-1]).pages > 1


@pytest.mark.parametrize("number", [0, -1, 4])
def test_a_page_that_is_not_there_is_an_error_that_says_how_many_there_are(number):
    kept = KeptResults().keep(LongText.of("x" * 150), 115)

    assert kept.pages == 3
    with pytest.raises(UnknownName) as caught:
        kept.page(number)
    assert caught.value.hint == "the result has 3 pages"


def kept_lines(*lines):
    return KeptResults().keep(LongText.of("\n".join(lines)), 100)


def test_grep_finds_plain_text_with_its_line_numbers():
    found = kept_lines("a.c", "abc", "a.c again").grep("a.c")

    assert str(found) == "1: a.c\n3: a.c again"
    assert (found.hits, found.more) == (2, False)


def test_grep_finds_regular_expressions():
    found = kept_lines("a.c", "abc", "ABC").grep("^a[b.]c$", regex=True)

    assert str(found) == "1: a.c\n2: abc"


def test_grep_shows_neighbours_once():
    found = kept_lines("0", "1", "hit", "3", "hit", "5", "6").grep("hit", context=1)

    assert str(found) == "2- 1\n3: hit\n4- 3\n5: hit\n6- 5"


def test_grep_stops_at_its_limit_and_says_so():
    found = kept_lines(*["hit"] * 10).grep("hit", limit=3)

    assert (found.hits, found.more) == (3, True)
    assert str(found).endswith("… more than 3 hits")


@given(st.integers(0, 3000), st.integers(1, 200))
def test_grep_finds_plain_text_anywhere_in_a_very_long_line(position, length):
    line = "-" * position + "x" * length + "-" * 500

    found = kept_lines(line).grep("x" * length)

    assert found.hits
    assert all(len(hit.text) <= 500 for hit in found.lines)


def test_grep_is_not_frozen_by_a_hostile_pattern():
    assert kept_lines("a" * 5000 + "!").grep("^(a+)+$", regex=True, limit=1).hits <= 1


@pytest.mark.parametrize("pattern", ["", "x" * 201])
def test_grep_refuses_patterns_of_no_or_too_great_length(pattern):
    with pytest.raises(BadArguments) as caught:
        kept_lines("a").grep(pattern)

    assert caught.value.path == "/pattern"


@pytest.mark.parametrize("pattern", ["[", r"(a)\1", "(?=a)", "(a{1000}){1000}"])
def test_grep_refuses_expressions_it_cannot_search_with(pattern):
    with pytest.raises(BadArguments, match="not a regular expression we can search with"):
        kept_lines("a").grep(pattern, regex=True)


def sifted(*content):
    answer = result(*content)
    answer.sift()
    return answer


@pytest.mark.parametrize("filling", [0, 5_000], ids=["small", "large"])
@pytest.mark.parametrize(
    "block",
    [
        None,
        "x",
        5,
        [],
        {},
        {"type": 5},
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "image", "mimeType": "image/png"},
        {"type": "image", "data": "", "mimeType": 5},
        {"type": "audio", "data": 5},
        {"type": "resource_link", "name": "a"},
        {"type": "resource"},
        {"type": "resource", "resource": {"text": ""}},
        {"type": "resource", "resource": {"uri": "a:"}},
    ],
)
def test_a_block_that_no_client_can_use_is_dropped_with_a_warning(block, filling):
    others = [text("before and after")] * filling

    answer = sifted(*others, block, text("good"))

    assert answer.blocks[-1] == TextBlock("good")
    assert len(answer.blocks) == filling + 1
    assert answer.warnings[0].startswith(f"malformed content was dropped: block {filling}: ")


@pytest.mark.parametrize("filling", [0, 5_000], ids=["small", "large"])
@pytest.mark.parametrize(
    "block",
    [
        text("x"),
        {"type": "hologram"},
        {"type": "hologram", "text": 5},
        {"type": "image", "data": "?"},
        {"type": "resource_link", "uri": "a:"},
        {"type": "resource", "resource": {"uri": "a:", "blob": ""}},
    ],
)
def test_a_block_that_some_client_can_use_is_left_alone(block, filling):
    answer = result(*[text("others")] * filling, block, isError=True, other={"a": [1]})
    raw = answer.raw

    answer.sift()

    assert answer.raw is raw
    assert answer.warnings == ()


def test_what_else_a_result_says_stays_when_blocks_are_dropped():
    answer = result(None, isError=True, other={"a": [1]})

    answer.sift()

    assert msgspec.json.decode(answer.raw) == {"content": [], "isError": True, "other": {"a": [1]}}


@pytest.mark.parametrize("content", [b"null", b'"x"', b"5", b"{}"])
def test_content_that_is_no_list_is_dropped_as_a_whole(content):
    answer = ToolResult(b'{"content":%b}' % content)

    answer.sift()

    assert answer.blocks == ()
    assert answer.warnings == ("malformed content was dropped: its content is not a list",)


@given(odd_blocks.filter(lambda block: isinstance(block, dict)))
@example({"type": "image", "data": "", "mimeType": 5})
@example({"type": "resource_link", "uri": "a:", "name": None})
@example({"type": "resource", "resource": {"uri": "a:", "text": "", "blob": 5}})
@example({"type": "resource", "resource": {"uri": 5, "text": ""}})
@example({"type": "resource", "resource": 5})
@example({"type": 5, "text": ""})
def test_a_long_block_is_judged_like_a_short_one(block):
    short, long = sifted(block), sifted(block | {"padding": LONG})

    assert long.warnings == short.warnings
    assert len(long.blocks) == len(short.blocks)


@pytest.mark.parametrize(
    "block",
    [
        text(LONG),
        {"type": "image", "data": LONG, "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "a:", "blob": LONG}},
    ],
)
def test_a_long_block_is_looked_at_without_a_copy(block):
    answer = result(text("short"), block)
    tracemalloc.start()
    try:
        answer.sift()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < len(LONG) / 4
    assert answer.warnings == ()


def test_dropped_blocks_are_counted_not_listed():
    assert sifted(*[None] * 1000).warnings[0].endswith("; and 997 more")


def large(*broken):
    """A large answer whose last block cannot be decoded: nobody has to look at it."""
    blocks = [msgspec.json.encode(text(f"line {number}")) for number in range(20_000)]
    return ToolResult(b'{"content":[%b]}' % b",".join((*blocks, *broken)))


def test_of_a_large_result_only_as_much_is_decoded_as_is_shown():
    view = large(b'{"type":"text","text":"\xff"}').capped(500, kept := KeptResults())

    assert view.text.startswith("line 0\nline 1\n")
    assert view.text.endswith(
        f'… the result has 0.7 MB; the rest: result "{view.result_id}" page 2'
    )
    assert len(view.text) <= 500
    assert view.beginning(8) == "line 0\nl"
    assert len(view.blocks) == 20_001
    assert view.blocks[1:3][1] == TextBlock("line 2")
    held = kept.result(view.result_id)
    assert held.page(1) + held.page(2) in "\n".join(f"line {n}" for n in range(500))
    assert held.grep("line 77", limit=1).lines[0].number == 78
    with pytest.raises(BadAnswer):
        _ = held.text


def test_a_large_answer_as_data_leaves_the_hosts_garbage_collector_alone(monkeypatch):
    rows = [{"number": number, "tags": [], "more": {}} for number in range(20_000)]
    monkeypatch.delattr(gc, "disable")

    assert result(structuredContent={"rows": rows}).structured == {"rows": rows}


def test_the_pages_of_a_large_result_join_to_the_whole():
    view = large().capped(5000, kept := KeptResults())

    held = kept.result(view.result_id)
    pages = [held.page(number) for number in range(1, held.pages + 1)]

    assert "".join(pages) == held.text == large().text
    assert all(len(page) <= 5000 for page in pages)
    assert held.grep("line 19999").hits == 1


def test_images_are_found_among_everything_else():
    image = {"type": "image", "mimeType": "image/png", "data": encoded(png(1, 2))}

    assert [one.width for one in result(text('"image"'), image, None).images] == [1]
    assert list(large(b'{"type":"text","text":"\xff"}').images) == []


@pytest.mark.parametrize(
    "content",
    [
        pytest.param([{"type": "text", "text": "one"}], id="one text"),
        pytest.param([{"type": "text", "text": "é\n"}, {"type": "text", "text": ""}], id="two"),
        pytest.param([{"type": "text", "text": ""}], id="an empty one"),
        pytest.param([], id="none at all"),
        pytest.param(
            [{"type": "text", "text": "a"}, {"type": "image", "data": "aGk=", "mimeType": "a/b"}],
            id="a text and an image",
        ),
    ],
)
def test_a_result_that_was_decoded_to_check_it_says_the_same(content):
    raw = msgspec.Raw(msgspec.json.encode({"content": content, "structuredContent": {"n": 1}}))

    checked = ToolResult(raw, "server", "tool", 0.0, False, parse_sound(raw))

    assert checked.text == ToolResult(raw).text
