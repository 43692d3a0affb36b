"""Small real MCP servers: three that work, one that crashes and one that hangs.

In: MCP on standard input, from the program that starts them. Out: MCP on standard output. They
must not import `multitap`: they stand for other people's programs.
"""
