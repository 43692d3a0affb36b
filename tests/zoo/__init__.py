"""Honest and hostile MCP servers to test a client against."""
