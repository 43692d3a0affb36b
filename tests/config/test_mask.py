import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.config import masked
from multitap.config.mask import MASK, masked_text


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("command", "npx", "npx"),
        ("timeout", 5, 5),
        ("env.TOKEN", "hunter2", MASK),
        ("env.TOKEN", "", ""),
        ("env.TOKEN", "${TOKEN}", "${TOKEN}"),
        ("env.TOKEN", "${TOKEN:-hunter2}", f"${{TOKEN:-{MASK}}}"),
        ("env.TOKEN", "${auth:gh}${env:B}", "${auth:gh}${env:B}"),
        ("env.TOKEN", "x${TOKEN}", MASK),
        ("headers.Authorization", "Bearer hunter2", MASK),
        ("headers.Authorization", "Bearer ${auth:gh}", "Bearer ${auth:gh}"),
        ("env", {"A": "hunter2", "B": "${B}"}, {"A": MASK, "B": "${B}"}),
        ("oauth.client_secret", "hunter2", MASK),
        (
            "oauth",
            {"client_id": "me", "client_secret": "hunter2"},
            {"client_id": "me", "client_secret": MASK},
        ),
        (
            "url",
            "https://me:hunter2@x/y?key=hunter2&b=#hunter2",
            f"https://{MASK}@x/y?key={MASK}&b=",
        ),
        ("url", "${BASE}/mcp", "${BASE}/mcp"),
        (
            "args",
            ["-y", "pkg", "--api-key", "hunter2", "--port", "80"],
            ["-y", "pkg", "--api-key", MASK, "--port", "80"],
        ),
        ("args", ("--token=hunter2", "--password=${P}"), [f"--token={MASK}", "--password=${P}"]),
        ("args", ["--auth-token", "--verbose"], ["--auth-token", "--verbose"]),
    ],
)
def test_what_could_be_a_secret_is_not_shown(key, value, shown):
    assert masked(key, value) == shown


@given(st.text(min_size=1))
def test_a_text_is_shown_only_if_it_is_nothing_but_variables(text):
    shown = masked_text("hunter2" + text)

    assert shown == MASK
