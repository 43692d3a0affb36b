import base64
from pathlib import Path

import pytest

from multitap.config import HttpServer, Scope, StdioServer, expand_server
from multitap.config.secrets import in_arguments, in_headers, in_url, in_value, in_variables

TOKEN = "ghp_abcdefghij0123456789"


@pytest.mark.parametrize(
    "value",
    [
        "1",
        "true",
        "info",
        "production",
        "us-east-1",
        "en_US.UTF-8",
        "gpt-4o-mini",
        "claude-3-5-sonnet-latest",
        "127.0.0.1:8080",
        "api.example.com",
        "jane@example.com",
        "2026-11-16",
        "/usr/local/bin:/usr/bin",
        "~/notes",
        "./data/file.json",
        "--max-old-space-size=4096",
        "https://api.example.com/v1",
        "xxxxxxxxxxxx",
    ],
)
def test_what_reads_like_anything_else_is_no_secret(value):
    assert not [*in_value(value, telling=False)]


@pytest.mark.parametrize(
    ("found", "secrets"),
    [
        (in_variables({"NAME": "hunter2hunter2"}), {"hunter2hunter2"}),
        (in_variables({"DB_PASSWORD": "letmein"}), {"letmein"}),
        (in_variables({"API_KEY": "/home/me/key.pem", "AUTH_TYPE": "bearer"}), set()),
        (in_variables({"GIT_AUTHOR_NAME": "Jane Doe"}), set()),
        (in_variables({"DATABASE": "postgres://me:letmein@db/x"}), {"letmein"}),
        (in_variables({"H": '{"Authorization": "Bearer ntn_123456"}'}), {"ntn_123456"}),
        (in_headers({"Authorization": "Bearer letmein"}), {"letmein"}),
        (in_headers({"X-Toolsets": "repos,issues", "Accept": "application/json"}), set()),
        (in_headers({"Cookie": "a=letmein1; b=letmein2"}), {"letmein1", "letmein2"}),
        (in_url("https://letmein@x/mcp"), {"letmein"}),
        (
            in_url("https://x/s/0123456789abcdef0123/mcp?k=abc123"),
            {"0123456789abcdef0123", "abc123"},
        ),
        (in_url("https://x/mcp?profile=production&key=p%40ssword"), {"p@ssword", "p%40ssword"}),
        (in_arguments(["--token", "letmein", "--port", "8080"]), {"letmein"}),
        (
            in_arguments(["--api-key=letmein", "-e", "DB_PASSWORD=letmein2"]),
            {"letmein", "letmein2"},
        ),
        (in_arguments(["--header", "Authorization: Bearer letmein"]), {"letmein"}),
        (in_arguments(["-y", "@scope/server-files@2025.11.25", TOKEN]), {TOKEN}),
    ],
)
def test_secrets_are_known_by_name_place_or_looks(found, secrets):
    wanted = {secret for secret in found if "{" not in secret and ";" not in secret}

    assert wanted == secrets


def test_a_basic_login_is_known_encoded_and_plain():
    encoded = base64.b64encode(b"me:letmein").decode()

    assert {*in_headers({"Authorization": f"Basic {encoded}"})} == {encoded, "letmein"}


def test_what_variables_hold_is_hidden():
    written = StdioServer(command="x", args=("${HOME}", "--x", "${THING}", "${MODE}"))
    env = {"HOME": "/home/me", "THING": "a1b2c3d4e5", "MODE": "production"}

    expanded = expand_server(written, Scope(env=env, folder=Path("/"), home=Path("/")))

    assert expanded.redact("/home/me a1b2c3d4e5 production") == "/home/me *** production"


def test_a_copy_hides_what_it_was_given_and_what_the_original_knew():
    first = HttpServer(url="http://x", headers={"X-Key": "letmein1"})
    first.redact.learn(["letmein2"])

    other = first.replace(headers={"X-Key": "letmein3"})

    assert other.redact("letmein1 letmein2 letmein3") == "*** *** ***"


def test_the_repr_of_a_server_shows_no_secret():
    program = StdioServer(command="x", args=("--token", "letmein", f"--x={TOKEN}"))
    remote = HttpServer(url="https://me:letmein@x/mcp?k=letmein")

    assert "letmein" not in f"{program!r} {program} {remote!r} {remote}"
    assert TOKEN not in repr(program)
