"""A client made of a hub, for the suite to judge."""

import contextlib
import tempfile

import aiohttp
import anyio
import mcp_types as types

from multitap import Handlers, HttpServer, MultitapError, Settings, open_hub
from multitap.config import OAuth
from multitap.names import Naming
from multitap.wire.request import make_request
from tests.waiting import PATIENCE

STAND_INS = {"integer": 0, "number": 0, "boolean": False, "object": {}, "array": [], "null": None}


async def accept_defaults(_asked, params):
    """Agree to a form as it is filled in already."""
    fields = params.requested_schema.get("properties", {})
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    return types.ElicitResult(action="accept", content=content)


async def confirm(_asked, _params):
    return types.ElicitResult(action="accept", content={"confirmed": True})


async def sample(_asked, _params):
    words = types.TextContent(type="text", text="")
    return types.CreateMessageResult(role="assistant", content=words, model="stand-in")


async def no_roots(_asked):
    return types.ListRootsResult(roots=[])


async def log_in(_asked, address):
    """A browser whose user agrees to everything."""
    async with (
        aiohttp.ClientSession() as browser,
        browser.get(address, allow_redirects=False) as response,
    ):
        return response.headers["Location"]


async def look(_hub, _context):
    """To connect is to list all there is."""


async def add(hub, _context):
    await hub.call("add_numbers", {"a": 5, "b": 3})


async def ask_anyway(hub, _context):
    """This server says that it has nothing, and looks at how it is asked."""
    call = {"name": "add_numbers", "arguments": {"a": 5, "b": 3}}
    with contextlib.suppress(MultitapError):
        await hub.links["suite"].request(make_request("tools/call", call, PATIENCE))


async def reconnect(hub, _context):
    await hub.call("test_reconnection")


async def fill_in(hub, _context):
    await hub.call("test_client_elicitation_defaults")


async def call_every_tool(hub, _context):
    for tool in hub.tools:
        await tried(hub, tool.name, fitting(tool.parameters))


async def touch_everything(hub, context):
    await call_every_tool(hub, context)
    for resource in hub.catalog.resources:
        await hub.read(resource.uri)
    for prompt in hub.catalog.prompts:
        await hub.prompt(prompt)


async def replay(hub, context):
    for call in context["toolCalls"]:
        await tried(hub, call["name"], call["arguments"])


async def echo_schema(hub, _context):
    schema = hub.catalog.tools["json_schema_2020_12_tool"].input_schema
    await hub.call("json_schema_echo", {"schema": schema})


async def be_asked_back(hub, _context):
    for case in ("echo_state", "unrelated", "no_state", "no_result_type"):
        result = await hub.call(f"test_mrtr_{case}")
        assert result.success, result.error


SCENARIOS = {
    "initialize": look,
    "tools_call": add,
    "sse-retry": reconnect,
    "json-schema-ref-no-deref": look,
    "json-schema-2020-12-preservation": echo_schema,
    "request-metadata": ask_anyway,
    "http-standard-headers": touch_everything,
    "http-invalid-tool-headers": call_every_tool,
    "http-custom-headers": replay,
    "elicitation-sep1034-client-defaults": fill_in,
    "sep-2322-client-request-state": be_asked_back,
}


def fitting(schema):
    """The least that a tool's schema asks for."""
    fields = schema.get("properties", {})
    return {
        name: STAND_INS.get(fields.get(name, {}).get("type"), "x")
        for name in schema.get("required", ())
    }


def oauth(scenario, context):
    """Registered before, where the suite says so; else by an address that describes us."""
    known = {
        "client_id": context.get(
            "client_id", "https://conformance-test.local/client-metadata.json"
        ),
        "client_secret": context.get("client_secret"),
        "issuer": context.get("issuer"),
    }
    match scenario:
        case "auth/client-credentials-basic":
            known |= {"grant": "client_credentials"}
        case "auth/client-credentials-jwt":
            known |= {"grant": "client_credentials", "private_key": context["private_key_pem"]}
        case "auth/wif-jwt-bearer":
            known |= {"grant": "jwt_bearer", "assertion": context["valid_jwt"]}
        case "auth/enterprise-managed-authorization":
            known |= {
                "grant": "jwt_bearer",
                "assertion": context["idp_id_token"],
                "identity_provider": context["idp_token_endpoint"],
                "identity_client_id": context["idp_client_id"],
            }
    return OAuth(**known)


async def logged_in(hub):
    """Connected, or not able to; a server that waits for a login delays nobody, but us."""

    def is_decided():
        (server,) = hub.snapshot().servers
        waits = server.failure is not None and server.failure.message == "waiting for a login"
        return hub.links["suite"].is_settled and not waits

    with anyio.fail_after(PATIENCE):
        while not is_decided():
            await hub.changed.wait()


async def tried(hub, name, arguments):
    """A call that may be refused: the suite looks at what was sent."""
    with contextlib.suppress(MultitapError):
        await hub.call(name, arguments)


async def run(scenario, url, context):
    """Do what the scenario wants to see."""
    elicit = confirm if scenario == "sep-2322-client-request-state" else accept_defaults
    handlers = Handlers(elicit=elicit, sample=sample, roots=no_roots, login=log_in)
    with tempfile.TemporaryDirectory() as state_dir:
        server = HttpServer(url=url, oauth=oauth(scenario, context))
        settings = Settings(servers={"suite": server}, naming=Naming.BARE, state_dir=state_dir)
        async with open_hub(settings, handlers=handlers) as hub:
            await logged_in(hub)
            (server,) = hub.snapshot().servers
            assert server.failure is None, server.failure
            await SCENARIOS.get(scenario, call_every_tool)(hub, context)
