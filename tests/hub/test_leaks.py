"""No secret leaves a link: not by a log, an event, an error, a status, the store or a `repr`."""

import base64
import json
import logging
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from multitap import HttpServer, LocalServer, Settings, StdioServer, open_hub
from multitap.config import Scope, expand_server
from multitap.config.models import Audit
from multitap.errors import BadArguments, MultitapError
from multitap.events import LinkState
from multitap.gateway.client_errors import refusal_of
from multitap.wire.request import make_request
from tests.test_redaction import bare, spellings
from tests.wire.http_zoo import serve

HARMLESS = {"LEAKY_TOKEN": "-", "LEAKY": "-"}
LEAKY = str(Path(__file__).parents[1] / "upstream" / "leaky.py")
SIGNS = "abcXYZ019 -_.~/+%&=?#\"'\\<>é€"

secrets = st.text(st.sampled_from(SIGNS), min_size=4, max_size=30).map(lambda text: f"a1b2{text}c3")
few = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Exits:
    """Everything that was said to anybody."""

    def __init__(self, stack: ExitStack) -> None:
        self.said: list[str] = []
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def add(self, *things: object) -> None:
        for thing in things:
            self.said += [repr(thing), str(thing)]
            if isinstance(thing, BaseException):
                self.said += traceback.format_exception(thing)

    def check(self, *given: str) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file():
                self.said.append(path.read_bytes().decode("utf-8", "replace"))
        everything = "\n".join(self.said)
        assert "***" in everything
        for secret in given:
            for name in spellings(secret):
                assert bare(secret, name) not in everything, name
            assert base64.b64encode(f"user:{secret}".encode()).decode() not in everything


async def gather(exits: Exits, config: StdioServer | HttpServer, env: dict[str, str]) -> LinkState:
    """Run a server, call it, and take down what comes out."""

    def expand(_, config):
        return expand_server(config, Scope(env=env, folder=exits.folder, home=exits.folder))

    configured = Settings(servers={"leaky": config}, state_dir=exits.folder)
    exits.add(configured, configured.servers["leaky"], expand("", config))
    async with open_hub(configured, expand=expand) as hub:
        with hub.events.subscribe() as events:
            await hub.settled()
            server = hub.snapshot().server("leaky")
            exits.add(server, msgspec.json.encode(server), server.failure)
            try:
                result = await hub.call("leaky_leak", {})
                exits.add(result.text, result.raw, result.data)
            except MultitapError as exc:
                exits.add(exc)
            try:
                await hub.prompt("leaky_none")
                await hub.links["leaky"].request(make_request("prompts/get", {"name": "x"}, 30.0))
            except MultitapError as exc:
                exits.add(exc)
            try:
                await hub.links["leaky"].request(make_request("prompts/get", {"name": "x"}, 30.0))
            except MultitapError as exc:
                refusal = refusal_of(exc)
                exits.add(exc, refusal, json.dumps(refusal.data))
            exits.add(hub.snapshot(), hub.metrics.prometheus(), hub.metrics.servers())
            heard = events.statistics().current_buffer_used
            exits.add(*[await anext(events) for _ in range(heard)])
        return server.state


@given(secrets, secrets, secrets, st.sampled_from(["up", "down"]))
@few
def test_a_program_cannot_make_us_repeat_its_secrets(caplog, token, variable, option, mode):
    config = StdioServer(
        command=sys.executable,
        args=(LEAKY, "--api-key", option, mode),
        env={"LEAKY_TOKEN": token, "LEAKY": "${SOMETHING}"},
    )
    with ExitStack() as stack, caplog.at_level(logging.DEBUG):
        caplog.clear()
        exits = Exits(stack)

        state = anyio.run(gather, exits, config, {"SOMETHING": variable})

        assert state is (LinkState.CONNECTED if mode == "up" else LinkState.ERROR)
        exits.add(caplog.text)
        exits.check(token, variable, option)


@given(secrets, secrets, secrets)
@few
def test_a_web_server_cannot_make_us_repeat_its_secrets(caplog, password, query, bearer):
    async def echoing(request, caller):
        text = f"{request.path} {' '.join(request.headers.values())}"
        await caller.respond(text.encode(), status=500, content_type="text/plain")

    async def run(exits: Exits) -> LinkState:
        async with serve(echoing) as server:
            place = f"me:{quote(password, safe='')}@127"
            url = f"{server.url.replace('127', place, 1)}?k={quote(query, safe='')}"
            headers = {"X-Api-Key": "${SOMETHING}"}
            config = HttpServer(url=url, headers=headers, reconnect=False)
            return await gather(exits, config, {"SOMETHING": bearer})

    bearer = bearer.encode("ascii", "ignore").decode()
    with ExitStack() as stack, caplog.at_level(logging.DEBUG):
        caplog.clear()
        exits = Exits(stack)

        state = anyio.run(run, exits)

        assert state is LinkState.ERROR
        exits.add(caplog.text)
        exits.check(password, query, bearer)


async def test_a_server_with_long_names_and_words_is_quoted_in_part(tmp_path):
    config = StdioServer(command=sys.executable, args=(LEAKY, "-", "-", "long"), env=HARMLESS)
    async with open_hub(Settings(servers={"leaky": config}, state_dir=tmp_path)) as hub:
        with hub.events.subscribe() as events:
            await hub.settled()
            failed = await hub.call("leaky_leak", {})
            with pytest.raises(MultitapError) as caught:
                await hub.call("leaky_" + "x" * 1_000_000)
            server = hub.snapshot().server("leaky")
            heard = events.statistics().current_buffer_used
            told = [await anext(events) for _ in range(heard)]

    assert failed.is_error
    assert server.state is LinkState.CONNECTED
    assert "281 more warnings like these" in server.warnings
    assert len(repr(server)) < 30_000
    assert max(len(repr(event)) for event in told) < 10_000
    assert len(str(caught.value)) < 1000


ECHOED = "hunter2-correct-horse"


def echoing():
    server = MCPServer("forms")

    @server.tool()
    def sign_in(user: str, password: str = "", login: dict | None = None, pin: int = 0) -> str:
        raise ToolError(f"wrong: {user} {password} {login} {pin}")

    @server.tool()
    def repeat(password: str) -> str:
        return f"it is {password}"

    return server


@pytest.mark.parametrize("recording", ["off", "errors", "all"])
async def test_a_secret_argument_that_a_server_repeats_is_not_kept(tmp_path, recording):
    configured = Settings(
        state_dir=tmp_path,
        servers={"forms": LocalServer(server=echoing())},
        record=recording,
        audit=Audit(arguments=True),
    )
    arguments = {
        "user": "ada",
        "password": ECHOED,
        "login": {"secret": "another-secret-value"},
        "pin": 471_108_150_423,  # long: a hash in the audit log may contain any four digits
    }
    async with open_hub(configured) as hub:
        await hub.settled()
        with hub.events.subscribe() as events:
            result = await hub.call("forms_sign_in", arguments)
            repeated = await hub.call("forms_repeat", {"password": ECHOED})
            with pytest.raises(BadArguments):
                await hub.call("forms_repeat", {"password": {"value": ECHOED}})
            told = [repr(events.receive_nowait()) for _ in range(3)]
        kept = [
            *told,
            repr(hub.metrics.latest()),
            repr(hub.metrics.servers()),
            repr(hub.metrics.tools("forms")),
        ]
    kept += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]

    assert ECHOED in result.text  # the caller gets what the server says
    assert ECHOED in repeated.text
    everything = "".join(kept)
    assert "wrong: ada ***" in everything
    for secret in (ECHOED, "another-secret-value", "471108150423"):
        assert secret not in everything
