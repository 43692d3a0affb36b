"""Which line of a program's standard error is quoted, and what is advised."""

import pytest

from multitap.errors import WireClosed
from multitap.events import Phase
from multitap.redaction import Redactor
from multitap.upstream.diagnosis import LONGEST, advice, diagnose, telling_line
from multitap.wire.wire import Evidence
from tests.upstream.broken_servers import BROKEN

NPM_404 = """\
npm warn Unknown user config "nodedir". This will stop working in the next major version of npm.
npm error code E404
npm error 404 Not Found - GET https://packages.example.com/mcp-server-nosuch
npm error 404
npm error 404  The requested resource 'mcp-server-nosuch@*' could not be found
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git url.
npm error A complete log of this run can be found in: /root/.npm/_logs/2026-11-16-debug-0.log
"""
NPM_VERSION = """\
npm error code ETARGET
npm error notarget No matching version found for @acme/server@99.9.9.
npm error notarget In most cases you or one of your dependencies are requesting a package version
npm notice
npm notice New minor version of npm available! 11.19.1 -> 11.21.1
npm error A complete log of this run can be found in: /root/.npm/_logs/2026-11-16-debug-0.log
"""
NPM_NO_PROGRAM = """\
npm error could not determine executable to run
npm error A complete log of this run can be found in: /root/.npm/_logs/2026-11-16-debug-0.log
"""
NODE_SCRIPT = """\
node:internal/modules/cjs/loader:1210
  throw err;
  ^

Error: Cannot find module '/srv/nosuch.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1207:15)
    at node:internal/main/run_main_module:28:49 {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v20.20.2
"""
NODE_PACKAGE = """\
node:internal/process/esm_loader:97
Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'express' imported from /srv/server.mjs
    at packageResolve (node:internal/modules/esm/resolve:873:9) {
  code: 'ERR_MODULE_NOT_FOUND'
}

Node.js v20.20.2
"""
NODE_PORT = """\
node:events:502
      throw er; // Unhandled 'error' event
      ^

Error: listen EADDRINUSE: address already in use :::39111
    at Server.setupListenHandle [as _listen2] (node:net:1908:16)
Emitted 'error' event on Server instance at:
    at emitErrorNT (node:net:1944:8) {
  code: 'EADDRINUSE',
  errno: -98,
  syscall: 'listen',
  port: 39111
}

Node.js v20.20.2
"""
UV_PACKAGE = """\
error: No solution found when resolving tool dependencies
  cause: Because mcp-nosuch was not found in the package registry and you require mcp-nosuch, we \
can conclude that your requirements are unsatisfiable.
"""
OLDER_UV_PACKAGE = """\
  \N{MULTIPLICATION SIGN} No solution found when resolving tool dependencies:
  ╰─▶ Because mcp-nosuch was not found in the package registry and you require
      mcp-nosuch, we can conclude that your requirements are unsatisfiable.
"""
UV_NETWORK = """\
error: Request failed after 3 retries in 6.7s
  cause: Failed to fetch: http://127.0.0.1:1/simple/foo/
  cause: error sending request for url (http://127.0.0.1:1/simple/foo/)
  cause: client error (Connect)
  cause: tcp connect error
  cause: Connection refused (os error 111)
"""
UV_PROGRAM = """\
Installed 31 packages in 124ms
An executable named `nosuch` is not provided by package `mcp-server-time`.
The following executables are available:
- mcp-server-time
"""
FLAG = """\
Downloading cryptography (4.5MiB)
Installed 31 packages in 124ms
usage: mcp-server-time [-h] [--local-timezone LOCAL_TIMEZONE]
mcp-server-time: error: unrecognized arguments: --bad-flag
"""
TRACEBACK = """\
Starting up
Traceback (most recent call last):
  File "/srv/server.py", line 1, in <module>
    import nosuch
ModuleNotFoundError: No module named 'nosuch'
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/srv/server.py", line 9, in main
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/server.py", line 4, in serve
    | ValueError: the port is not a number
    +------------------------------------
"""
SDK = """\
Traceback (most recent call last):
  File "/srv/server.py", line 1, in <module>
    from mcp.server.fastmcp import FastMCP
ModuleNotFoundError: No module named 'mcp.server.fastmcp'
"""
VARIABLE = """\
Traceback (most recent call last):
  File "<frozen os>", line 679, in __getitem__
KeyError: 'GITHUB_TOKEN'
"""
SETTINGS = """\
Traceback (most recent call last):
  File "/srv/server.py", line 3, in <module>
pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings
api_key
  Field required [type=missing, input_value={}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.13/v/missing
"""
DOCKER = """\
docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?

Run 'docker run --help' for more information
"""
FOLDERS = """\
Warning: Cannot access directory /nosuch, skipping
Error: None of the specified directories are accessible
"""
NOTHING = "GitHub MCP Server running on stdio\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(
            NPM_404,
            "npm error 404 Not Found - GET https://packages.example.com/mcp-server-nosuch",
            id="npm package",
        ),
        pytest.param(
            NPM_VERSION,
            "npm error notarget No matching version found for @acme/server@99.9.9.",
            id="npm version",
        ),
        pytest.param(
            NPM_NO_PROGRAM, "npm error could not determine executable to run", id="npm program"
        ),
        pytest.param(NODE_SCRIPT, "Error: Cannot find module '/srv/nosuch.js'", id="node script"),
        pytest.param(
            NODE_PACKAGE,
            "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'express' imported from "
            "/srv/server.mjs",
            id="node package",
        ),
        pytest.param(
            NODE_PORT, "Error: listen EADDRINUSE: address already in use :::39111", id="node port"
        ),
        pytest.param(
            UV_PACKAGE,
            "Because mcp-nosuch was not found in the package registry and you require mcp-nosuch, "
            "we can conclude that your requirements are unsatisfiable.",
            id="uv package",
        ),
        pytest.param(
            OLDER_UV_PACKAGE,
            "Because mcp-nosuch was not found in the package registry and you require",
            id="older uv",
        ),
        pytest.param(UV_NETWORK, "Failed to fetch: http://127.0.0.1:1/simple/foo/", id="network"),
        pytest.param(
            UV_PROGRAM,
            "An executable named `nosuch` is not provided by package `mcp-server-time`.",
            id="uv program",
        ),
        pytest.param(
            FLAG, "mcp-server-time: error: unrecognized arguments: --bad-flag", id="argument"
        ),
        pytest.param(TRACEBACK, "ModuleNotFoundError: No module named 'nosuch'", id="traceback"),
        pytest.param(GROUP, "ValueError: the port is not a number", id="exception group"),
        pytest.param(VARIABLE, "KeyError: 'GITHUB_TOKEN'", id="variable"),
        pytest.param(
            SETTINGS,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings: "
            "api_key: Field required [type=missing, input_value={}, input_type=dict]",
            id="settings",
        ),
        pytest.param(
            DOCKER,
            "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
            "Is it running?",
            id="docker",
        ),
        pytest.param(
            FOLDERS, "Error: None of the specified directories are accessible", id="plain error"
        ),
        pytest.param(NOTHING, "GitHub MCP Server running on stdio", id="nothing better"),
        pytest.param("", "", id="silence"),
    ],
)
def test_the_line_that_says_why_is_quoted(text, line):
    assert telling_line(text) == line


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (NPM_404, "there is no such npm package: check its name in `args`"),
        (NPM_VERSION, "there is no such version of the package: check it in `args`"),
        (NPM_NO_PROGRAM, "the npm package has no program to run: check its name in `args`"),
        (NODE_SCRIPT, "`/srv/nosuch.js` does not exist: check the path in `args`, and `cwd`"),
        (NODE_PACKAGE, "install the npm package `express` where the server runs"),
        (
            NODE_PORT,
            "another program uses its port: stop that program, or choose another port",
        ),
        (UV_PACKAGE, "there is no such Python package: check its name in `args`"),
        (UV_NETWORK, "what it downloads cannot be reached: check network and proxy"),
        (UV_PROGRAM, "use `uvx --from mcp-server-time PROGRAM` with one of its programs"),
        (FLAG, "it does not know one of its arguments: check `args`"),
        (TRACEBACK, "install the Python package that provides `nosuch` where the server runs"),
        (VARIABLE, "set `GITHUB_TOKEN` in `env` of its configuration"),
        ("sh: 1: nosuch: not found\n", "install `nosuch`, or check that it is on PATH"),
    ],
)
def test_advice_follows_from_what_a_program_wrote(text, hint):
    assert advice(text) == hint


@pytest.mark.parametrize(("text", "line", "hint"), BROKEN.values(), ids=BROKEN)
def test_broken_servers_are_explained_as_a_person_would(text, line, hint):
    assert telling_line(text) == line
    assert advice(text) == hint


def test_an_older_sdk_is_only_advised_where_the_sdk_is_the_trouble():
    elsewhere = TRACEBACK.replace("/srv/", "/opt/mcp/").replace("Module", "")

    assert "mcp<2" in (advice(SDK) or "")
    assert "mcp<2" not in (advice(elsewhere) or "")


@pytest.mark.parametrize("text", [GROUP, FOLDERS, NOTHING, ""])
def test_no_advice_is_better_than_a_guess(text):
    assert advice(text) is None


def test_the_usual_words_of_a_server_that_was_up_are_no_reason():
    assert telling_line(NOTHING, is_up=True) == ""
    assert telling_line(NOTHING + TRACEBACK, is_up=True).startswith("ModuleNotFoundError")


@pytest.mark.parametrize(
    ("code", "stderr", "noise", "message", "hint"),
    [
        (0, "", "", "it exited with code 0 during the handshake", "it may not be an MCP server"),
        (
            0,
            "",
            "Usage: x [COMMAND]",
            "it exited with code 0 during the handshake: it only wrote 'Usage: x [COMMAND]'",
            "it may not be an MCP server",
        ),
        (0, "bye\n", "", "it exited with code 0 during the handshake: bye", "`multitap logs x`"),
        (1, "", "", "it exited with code 1 during the handshake", "`multitap logs x`"),
    ],
    ids=["silent", "usage", "words", "failure"],
)
def test_a_program_that_had_nothing_to_do_may_be_no_server(code, stderr, noise, message, hint):
    evidence = Evidence(pid=1, exit_code=code, stderr=stderr, noise=len(noise), noise_sample=noise)
    failure = diagnose(
        "x",
        WireClosed("closed", sent=True),
        phase=Phase.HANDSHAKE,
        evidence=evidence,
        at=0.0,
        timings={},
        redact=Redactor(),
    )

    assert failure.message == message
    assert hint in failure.hint


def test_a_quoted_line_has_a_limit():
    assert len(telling_line("Error: " + "x" * 10_000)) == LONGEST
