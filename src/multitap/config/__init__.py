from multitap.config.models import (
    HttpServer,
    Limits,
    LocalServer,
    ServerConfig,
    Settings,
    StdioServer,
    ToolFilter,
)

__all__ = [
    "HttpServer",
    "Limits",
    "LocalServer",
    "ServerConfig",
    "Settings",
    "StdioServer",
    "ToolFilter",
]
