"""Small real MCP servers: three that work, one that crashes and one that hangs."""
