"""The ways into the gateway: HTTP, stdio and legacy SSE.

In: bytes of clients. Out: answers, notifications and questions as bytes.
stdio and legacy SSE share `Duplex`. A front parses a message once and makes a `ClientRequest`. It
must not know what a request means: the gateway decides that.
"""
