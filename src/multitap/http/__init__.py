"""An HTTP/1.1 client and server of our own, on the httptools parser.

In: addresses, heads and bodies as bytes. Out: responses, requests and server-sent events as
bytes, within limits on time and memory. It must not know MCP, JSON-RPC or any server's
configuration: it is a library inside the library.
"""
