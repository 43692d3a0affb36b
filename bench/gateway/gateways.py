"""The gateways that are compared: how each is started, and how it wants to be asked."""

import json
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench.gateway import peers
from bench.gateway.peers import Missing

HERE = Path(__file__).parent
BOTH_ERAS = frozenset({"handshake", "stateless"})
BOTH_WAYS = frozenset({"stdio", "http"})


@dataclass(frozen=True, slots=True)
class Setup:
    """What one gateway is to serve, and where."""

    servers: Mapping[str, list[str] | str]
    """Commands and addresses."""
    port: int
    folder: Path
    """For its files; nobody else's."""

    @property
    def only(self):
        (server,) = self.servers.values()
        return server

    def config(self):
        """The path of a file in the format that nearly all of them read."""
        entries = {name: _entry(server) for name, server in self.servers.items()}
        path = self.folder / "servers.json"
        path.write_text(json.dumps({"mcpServers": entries}))
        return str(path)


@dataclass(frozen=True, slots=True)
class Gateway:
    key: str
    """On the command line."""
    name: str
    """In tables."""
    command: Callable[[Setup], list[str]]
    """How it is started. Raises `AbsentServer` where it is not to be had."""
    eras: frozenset[str] = BOTH_ERAS
    """Of clients."""
    crosses: bool = False
    """Whether clients of the other era can use a server through it."""
    reaches: frozenset[str] = BOTH_WAYS
    many: bool = False
    """Whether it serves several servers at one port."""
    tool: str = "{tool}"
    """The name of a tool for clients where it serves one server."""
    tool_of_many: str = "{server}_{tool}"
    dialect: str | None = None
    """How it is asked, where not by the protocol."""
    dialect_of_many: str | None = None
    peer: bool = False
    """Whether it is somebody else's, and has to be installed first."""

    def name_of(self, server, tool, *, many=False):
        pattern = self.tool_of_many if many else self.tool
        return pattern.format(server=server, tool=tool)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def _entry(server):
    if isinstance(server, str):
        return {"url": server, "type": "streamable-http"}
    command, *args = server
    return {"command": command, "args": args}


def _floor(setup):
    server = [setup.only] if isinstance(setup.only, str) else setup.only
    return [sys.executable, "-m", "bench.gateway.floor", str(setup.port), *server]


def _many_floor(setup):
    return [sys.executable, "-m", "bench.gateway.many_floor", str(setup.port), setup.config()]


def _multitap(setup):
    where = ("--http", f"127.0.0.1:{setup.port}", "--config", setup.config())
    return [sys.executable, "-m", "multitap", "serve", *where]


def _on_uvicorn(setup):
    return _on("uvicorn", setup)


def _on_aiohttp(setup):
    return _on("aiohttp", setup)


def _on(kind, setup):
    program = [sys.executable, "-m", "bench.gateway.other_web", kind]
    return [*program, str(setup.port), setup.config()]


def _sdk(setup):
    return [sys.executable, "-m", "bench.gateway.sdk_gateway", str(setup.port), setup.config()]


def _fastmcp(setup, sessions="fresh"):
    program = str(HERE / "fastmcp_gateway.py")
    return [
        str(peers.FASTMCP.installed()),
        *(program, str(setup.port), setup.config(), sessions),
    ]


def _fastmcp_reusing(setup):
    return _fastmcp(setup, sessions="reused")


def _mcp_proxy(setup):
    program = [str(peers.MCP_PROXY.installed()), "--port", str(setup.port), "--log-level", "ERROR"]
    if len(setup.servers) > 1:
        return [*program, "--named-server-config", setup.config()]
    return [*program, "--", *setup.only]


def _mcpo(setup):
    return [str(peers.MCPO.installed()), "--port", str(setup.port), "--config", setup.config()]


def _supergateway(setup):
    return [
        *_node(peers.SUPERGATEWAY),
        *("--stdio", shlex.join(setup.only), "--outputTransport", "streamableHttp", "--stateful"),
        *("--port", str(setup.port), "--logLevel", "none"),
    ]


def _mcp_hub(setup):
    return [*_node(peers.MCP_HUB), "--port", str(setup.port), "--config", setup.config()]


def _node_mcp_proxy(setup):
    return [
        *_node(peers.NODE_MCP_PROXY),
        *("--host", "127.0.0.1", "--port", str(setup.port), "--server", "stream"),
        *("--upstreamProtocol", "auto", "--", *setup.only),
    ]


def _node(peer):
    node = shutil.which("node")
    if node is None:
        raise Missing("`node` is not here")
    return [node, str(peer.installed())]


FLOOR = Gateway("floor", "bare forwarder", _floor)
MULTITAP = Gateway(
    "multitap", "multitap", _multitap, crosses=True, many=True, tool="{server}_{tool}"
)
ON_OTHERS = (
    replace(MULTITAP, key="uvicorn", name="multitap on uvicorn", command=_on_uvicorn),
    replace(MULTITAP, key="aiohttp", name="multitap on aiohttp", command=_on_aiohttp),
)
"""The same gateway behind the HTTP servers of others."""
MANY_FLOOR = replace(FLOOR, command=_many_floor, many=True)
"""The same before many servers."""
SDK = Gateway("sdk", "SDK client and server", _sdk, crosses=True, many=True)
PEERS = (
    Gateway("fastmcp", "FastMCP proxy", _fastmcp, many=True, peer=True),
    Gateway(
        "fastmcp-reused",
        "FastMCP proxy, reused session",
        _fastmcp_reusing,
        many=True,
        peer=True,
    ),
    Gateway(
        "mcp-proxy",
        "mcp-proxy (Python)",
        _mcp_proxy,
        eras=frozenset({"handshake"}),
        reaches=frozenset({"stdio"}),
        many=True,
        tool_of_many="{server}/{tool}",
        dialect_of_many="path-per-server",
        peer=True,
    ),
    Gateway(
        "node-mcp-proxy",
        "mcp-proxy (Node)",
        _node_mcp_proxy,
        reaches=frozenset({"stdio"}),
        peer=True,
    ),
    Gateway("supergateway", "supergateway", _supergateway, reaches=frozenset({"stdio"}), peer=True),
    Gateway(
        "mcp-hub",
        "mcp-hub",
        _mcp_hub,
        eras=frozenset({"handshake"}),
        many=True,
        tool="{server}/{tool}",
        tool_of_many="{server}/{tool}",
        dialect="hub-rest",
        dialect_of_many="hub-rest",
        peer=True,
    ),
    Gateway(
        "mcpo",
        "mcpo",
        _mcpo,
        eras=frozenset({"handshake"}),
        reaches=frozenset({"stdio"}),
        many=True,
        tool="{server}/{tool}",
        tool_of_many="{server}/{tool}",
        dialect="openapi",
        dialect_of_many="openapi",
        peer=True,
    ),
)
GATEWAYS = {gateway.key: gateway for gateway in (FLOOR, MULTITAP, SDK, *PEERS)}


def chosen(among, *, quick):
    """The gateways by these keys, or all; a quick look leaves out what has to be installed."""
    if among:
        return [GATEWAYS[key] for key in GATEWAYS if key in among]
    return [gateway for gateway in GATEWAYS.values() if not (quick and gateway.peer)]
