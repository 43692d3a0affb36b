"""The hub, shown to MCP clients as one server."""
