"""The shape of a valid configuration, whatever file it came from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from multitap.names import Naming

MIB = 1024 * 1024


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class ToolFilter(_Model):
    """Which tools may be seen and called: shell-style globs, `deny` wins over `allow`."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()


class Limits(_Model):
    """What one server may cost us."""

    message: int = Field(default=32 * MIB, ge=1024)
    """Bytes of one line, body (after decompression) or event."""
    in_flight: int = Field(default=64, ge=1)
    """Calls the server works on at the same time."""
    queue: int = Field(default=1024, ge=0)
    """Calls that may wait for their turn; more are refused at once."""
    tools: int = Field(default=10_000, ge=1)
    """Tools taken from one server's list."""


class _Server(_Model):
    enabled: bool = True
    start: Literal["eager", "lazy"] = "eager"
    """`lazy`: tools come from the stored catalog, the server starts with the first call."""
    idle_timeout: float | None = Field(default=None, gt=0)
    """Seconds without a call after which a lazy server is stopped; 300 where not given."""
    timeout: float = Field(default=30.0, gt=0)
    """Seconds to wait for an answer; every progress report starts them anew."""
    hard_timeout: float = Field(default=600.0, gt=0)
    """Seconds after which a call ends, progress or not."""
    connect_timeout: float = Field(default=60.0, gt=0)
    """Seconds from start to the first list; `npx` may have to download first."""
    health_interval: float | None = Field(default=None, gt=0)
    """Seconds between health checks; the settings' value where not given."""
    retry: Literal["hinted", "never"] = "hinted"
    """`hinted`: a lost call is repeated when the tool says that it is read-only or idempotent."""
    filter: ToolFilter = ToolFilter()
    """By the server's own tool names."""
    result_cap: int | None = Field(default=None, ge=100)
    """Characters of a result's text; the settings' value where not given."""
    result_caps: Mapping[str, int] = {}
    """The same by the server's own tool name."""
    limits: Limits = Limits()
    era: Literal["auto", "handshake", "stateless"] = "auto"
    """Which protocol era to speak; `auto` asks the server and remembers."""


class StdioServer(_Server):
    """A program that speaks MCP over its pipes."""

    transport: Literal["stdio"] = "stdio"
    command: str = Field(min_length=1)
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: Path | None = None

    @field_validator("command", "args")
    @classmethod
    def _no_nul(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if any("\0" in part for part in ((value,) if isinstance(value, str) else value)):
            raise ValueError("contains a NUL character")
        return value


class HttpServer(_Server):
    """A server reached by URL."""

    transport: Literal["http", "streamable-http", "sse"] = "http"
    """`http`: Streamable HTTP first, legacy SSE where the server does not speak it."""
    url: str = Field(pattern=r"^https?://[^\s]+$")
    headers: Mapping[str, str] = {}


class LocalServer(_Server):
    """An SDK `Server` or `MCPServer` object in this process."""

    transport: Literal["local"] = "local"
    server: Any


ServerConfig = Annotated[StdioServer | HttpServer | LocalServer, Field(discriminator="transport")]


class Settings(_Model):
    """Everything a hub runs by."""

    servers: Mapping[str, ServerConfig] = {}
    agents: Mapping[str, ToolFilter] = {}
    """What each agent may use, by the names callers see."""
    naming: Naming = Naming.SERVER_TOOL
    health_interval: float = Field(default=30.0, gt=0)
    start_concurrency: int = Field(default=16, ge=1)
    """How many servers start at the same time."""
    result_cap: int = Field(default=5000, ge=100)
    """Characters of a result's text; the rest is kept to be paged."""
    drain_timeout: float = Field(default=10.0, ge=0)
    """Seconds a replaced or removed server may finish its calls."""
    state_dir: Path | None = None
    """Where logs, call history and catalogs are kept; the user's state directory if not given."""
