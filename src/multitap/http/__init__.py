"""HTTP/1.1 of our own, client and server, on the parser httptools.

In: addresses, heads and bodies as bytes. Out: responses, requests and server-sent events as
bytes, within limits of time and memory. It must not know MCP, JSON-RPC or any server's
configuration: it is a library inside the library.
"""
