"""One control protocol for commands, screens and workers: HTTP and JSON on a unix socket.

In: a running gateway. Out: everything that a person can ask it or have it do. `methods.py` declares
the protocol, `service.py` answers it, with `access.py` for tokens, pins and people. `server.py`
serves it, `client.py` asks it from other processes, and `places.py` knows where the sockets are.

`background.py` is the one gateway that all clients of a user share: a client joins it by
`joining.py`, and `relay.py` carries its messages. It must not know commands, screens or pages: they
use it.
"""
