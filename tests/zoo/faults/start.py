"""Servers that do not come up, or come up in an odd way."""

import os
import time

from tests.zoo.honest import (
    HANDSHAKE_VERSIONS,
    INTERNAL,
    INVALID_PARAMS,
    NO_VERSION,
    STATELESS_ONLY,
    Honest,
)
from tests.zoo.pipes import STDERR, STDOUT

MISSING_NAME = b"""Traceback (most recent call last):
  File "/srv/weather/server.py", line 3, in <module>
    from mcp.server import FastMCP
ImportError: cannot import name 'FastMCP' from 'mcp.server'
"""
MISSING_KEY = b"""Traceback (most recent call last):
  File "/srv/weather/server.py", line 41, in <module>
    main()
  File "/srv/weather/server.py", line 12, in main
    key = os.environ["WEATHER_KEY"]
KeyError: 'WEATHER_KEY'
"""
UNKNOWN_METHOD = b"""Traceback (most recent call last):
pydantic_core._pydantic_core.ValidationError: 21 validation errors for ClientRequest
PingRequest.method
  Input should be 'ping' [type=literal_error, input_value='server/discover', input_type=str]
"""
NOTHING = {}
LEGACY_ONLY = {
    "resultType": "complete",
    "supportedVersions": [HANDSHAKE_VERSIONS[-1]],
    "capabilities": {},
    "ttlMs": 0,
    "cacheScope": "private",
}


class ExitAtStart(Honest, mode="exit_at_start"):
    complaint = b"zoo: cannot open the database\n"
    code = 1

    def start(self):
        self.write(self.complaint, STDERR)
        self.exit(self.code)


class ExitSilently(ExitAtStart, mode="exit_silently"):
    complaint = b""
    code = 0


class ExitCode3WithTraceback(ExitAtStart, mode="exit_code_3_with_traceback"):
    complaint = MISSING_KEY
    code = 3


class NeedsMcpLt2(ExitAtStart, mode="needs_mcp_lt_2"):
    complaint = MISSING_NAME


class UsageOnStdout(Honest, mode="usage_on_stdout"):
    def start(self):
        self.write(b"usage: weather [-h] --city CITY\nweather: error: --city is required\n")
        self.exit(2)


class NeverInit(Honest, mode="never_init"):
    def line(self, line):
        """Reads everything, answers nothing."""


class LoginPrompt(NeverInit, mode="login_prompt"):
    def start(self):
        self.write(b"Open https://example.com/device and enter ABCD-EFGH\nPassword: ")


class SlowInit(Honest, mode="slow_init"):
    def on_initialize(self, request):
        request.later(self.option("seconds", 1.0), super().on_initialize, request)

    def on_server_discover(self, request):
        request.later(self.option("seconds", 1.0), super().on_server_discover, request)


class BusyStart(Honest, mode="busy_start"):
    """Works before it reads, as a program with much to import does; `--name` is for its notes."""

    def start(self):
        self.name = self.option("name", "busy")
        self.record("startup", f"begin {self.name}")
        end = time.process_time() + self.option("seconds", 0.3)
        while time.process_time() < end:
            pass

    def on_tools_list(self, request):
        self.record("startup", f"ready {self.name}")
        super().on_tools_list(request)


class SlowDiscover(Honest, mode="slow_discover"):
    def on_server_discover(self, request):
        request.later(self.option("seconds", 3.0), super().on_server_discover, request)


class SlowInBoth(Honest, mode="slow_in_both"):
    """Answers both kinds of handshake late; the last one that it was asked for counts."""

    def on_initialize(self, request):
        request.later(self.option("seconds", 2.0), super().on_initialize, request)

    def on_server_discover(self, request):
        request.later(self.option("seconds", 2.0), super().on_server_discover, request)

    def _era_of(self, request):
        if request.method in {"initialize", "server/discover"}:
            self.spoken = "handshake" if request.method == "initialize" else "stateless"
        return super()._era_of(request)


class SilentOnInitialize(Honest, mode="silent_on_initialize"):
    era = "stateless"

    def on_server_discover(self, request):
        request.later(self.option("seconds", 1.5), super().on_server_discover, request)

    def asked(self, request):
        if request.method != "initialize":
            super().asked(request)


class NoResultType(Honest, mode="no_result_type"):
    era = "stateless"

    def dress(self, request, result):
        dressed = super().dress(request, result)
        if request.method in {"tools/call", "resources/read", "prompts/get"}:
            del dressed["resultType"]
        return dressed


class SilentOnDiscover(Honest, mode="silent_on_discover"):
    era = "handshake"

    def asked(self, request):
        if request.method not in STATELESS_ONLY:
            super().asked(request)


class ExitsOnDiscover(Honest, mode="exits_on_discover"):
    era = "handshake"

    def asked(self, request):
        if request.method in STATELESS_ONLY:
            self.write(UNKNOWN_METHOD, STDERR)
            self.exit(1)
        super().asked(request)


class DiscoverWrongCode(Honest, mode="discover_wrong_code"):
    era = "handshake"

    def asked(self, request):
        if request.method in STATELESS_ONLY:
            request.fail(INVALID_PARAMS, "Invalid request parameters", "")
        else:
            super().asked(request)


class DiscoverBadResult(Honest, mode="discover_bad_result"):
    era = "handshake"
    result = NOTHING

    def asked(self, request):
        if request.method == "server/discover":
            request.answer(self.result)
        else:
            super().asked(request)


class DiscoverLegacyOnly(DiscoverBadResult, mode="discover_legacy_only"):
    result = LEGACY_ONLY


class InitError(Honest, mode="init_error"):
    era = "handshake"

    def on_initialize(self, request):
        request.fail(INTERNAL, "the licence has expired")


class InitWrongShape(Honest, mode="init_wrong_shape"):
    era = "handshake"

    def on_initialize(self, request):
        request.answer({"hello": "world"})


class ExitInHandshake(Honest, mode="exit_in_handshake"):
    def on_initialize(self, _request):
        self.exit(1)

    on_server_discover = on_initialize


class BadVersion(Honest, mode="bad_version"):
    era = "handshake"
    version = "1999-01-01"

    def answer(self, request, result):
        if request.method == "initialize":
            result = {**result, "protocolVersion": self.version}
        super().answer(request, result)


class OldVersion(BadVersion, mode="old_version"):
    version = HANDSHAKE_VERSIONS[0]


class BadVersionModern(Honest, mode="bad_version_modern"):
    era = "stateless"

    def asked(self, request):
        data = {"supported": ["2099-01-01"], "requested": "2026-07-28"}
        request.fail(NO_VERSION, "Unsupported protocol version", data)


class EraFlip(Honest, mode="era_flip"):
    """Stateless at every odd start, handshake at every even one."""

    def __init__(self, options):
        super().__init__(options)
        self.era = "handshake" if self.recorded("starts") % 2 else "stateless"


class EchoSecret(Honest, mode="echo_secret"):
    """Refuses the handshake in words that hold the secret it was given."""

    def start(self):
        self.secret = os.environ.get("ZOO_SECRET", "")
        self.write(f"login failed for token {self.secret}\n".encode(), STDERR)

    def asked(self, request):
        request.fail(INTERNAL, f"token {self.secret} was refused", {"token": self.secret})


class LateTools(Honest, mode="late_tools"):
    def __init__(self, options):
        super().__init__(options)
        self.later_tools, self.tools = self.tools, {}

    def ready(self):
        self.after(self.option("seconds", 0.3), self.register)

    def register(self):
        self.tools = self.later_tools
        self.tools_changed()


class RootsAtOnce(Honest, mode="roots_at_once"):
    era = "handshake"

    def ready(self):
        self.ask_for_roots(lambda _reply: self.record("methods", "reply to roots/list"))

    def ask_for_roots(self, then):
        self.questions["zoo-roots"] = then
        self.say({"jsonrpc": "2.0", "id": "zoo-roots", "method": "roots/list"})


class RootsBeforeList(RootsAtOnce, mode="roots_before_list"):
    """Lists its tools only once the client has answered, with roots or with an error."""

    def on_tools_list(self, request):
        self.ask_for_roots(lambda _reply: super(RootsBeforeList, self).on_tools_list(request))

    def ready(self):
        """Asks when it must know, not before."""


class BufferedStdout(Honest, mode="buffered_stdout"):
    """Forgets to flush: answers leave when eight kilobytes have come together."""

    def start(self):
        self.held = b""

    def write(self, data, to=STDOUT):
        if to != STDOUT:
            super().write(data, to)
            return
        self.held += data
        if len(self.held) >= 8192:
            self.flush()

    def flush(self):
        held, self.held = self.held, b""
        super().write(held)

    def closing(self):
        self.flush()
        super().closing()
