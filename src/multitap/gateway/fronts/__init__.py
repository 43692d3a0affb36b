"""The ways into the gateway: HTTP, stdio, and the control socket.

In: bytes of clients and of our own commands. Out: answers, notifications and questions as bytes.
stdio and legacy SSE share `duplex`. A front parses a message once and makes a `ClientRequest`. It
must not know what a request means: the gateway decides that.
"""
