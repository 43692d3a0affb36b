"""Ways into the gateway: HTTP, the pipes of its own process, the control socket.

In: bytes of clients and of our own commands. Out: answers, notifications and questions as bytes.
`duplex` is what pipes and legacy SSE share. A front parses a message once and makes a
`ClientRequest`; it must not know what a request means: the gateway decides that.
"""
