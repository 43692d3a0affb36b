"""Requests that are read in two ways: a token where none belongs, or a frame within another."""

import pytest

from tests.gateway.hostile.raw import hello, http
from tests.gateway.hostile.stage import BEARER, TOKENS, open_stage

TOKEN = BEARER.removeprefix("Bearer ")
GOOD = f"Authorization: {BEARER}"


def post(target="/mcp", *lines):
    """A request as bytes, of which every line is ours."""
    whole = http(body=hello())
    head, _, body = whole.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    first = first.replace(" /mcp ", f" {target} ")
    return "\r\n".join((first, *rest, *lines, "", "")).encode("latin-1") + body


ELSEWHERE = {
    "in the address": post(f"/mcp?token={TOKEN}"),
    "in the address as OAuth had it": post(f"/mcp?access_token={TOKEN}"),
    "in the address as a header": post(f"/mcp?Authorization=Bearer%20{TOKEN}"),
    "in a cookie": post("/mcp", f"Cookie: token={TOKEN}; Authorization={TOKEN}"),
    "as a password": post("/mcp", "Authorization: Basic YTpi"),
    "behind a wrong one": post("/mcp", f"Authorization: Bearer wrong, {BEARER}"),
    "one letter short": post("/mcp", f"{GOOD[:-1]}"),
    "one letter long": post("/mcp", f"{GOOD}x"),
    "in other letters": post("/mcp", GOOD.swapcase().replace("aUTHORIZATION", "Authorization")),
}
TWO_READINGS = {
    "two tokens": post("/mcp", GOOD, "Authorization: Bearer wrong"),
    "two tokens, the good one last": post("/mcp", "Authorization: Bearer wrong", GOOD),
    "two lengths": post("/mcp", GOOD, "Content-Length: 4"),
    "a length and chunks": post("/mcp", GOOD, "Transfer-Encoding: chunked"),
    "a folded line": post("/mcp", "Authorization:", f" {BEARER}"),
    "a zero byte": post("/mcp", GOOD, "X-Odd: a\0b"),
    "two hosts": post("/mcp", GOOD, "Host: evil.example"),
    "a method in small letters": post("/mcp", GOOD).replace(b"POST", b"post", 1),
}


@pytest.mark.parametrize("name", ELSEWHERE)
async def test_a_token_counts_in_its_header_only(tmp_path, name):
    async with open_stage(tmp_path, tokens=TOKENS) as stage:
        assert await stage.turns_away(ELSEWHERE[name]) == 401


@pytest.mark.parametrize("name", TWO_READINGS)
async def test_what_can_be_read_in_two_ways_is_refused(tmp_path, name):
    async with open_stage(tmp_path, tokens=TOKENS) as stage:
        assert await stage.turns_away(TWO_READINGS[name]) == 400


async def test_the_name_and_the_scheme_of_the_header_have_no_case(tmp_path):
    async with open_stage(tmp_path, tokens=TOKENS) as stage, stage.dial() as line:
        answer = await line.asks(post("/mcp", f"aUTHORIZATION: bEARER {TOKEN}"))

        assert answer.status == 200
