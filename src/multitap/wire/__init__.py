"""Messages to and from one server, over any transport.

In: a server's expanded configuration and `Request` values. Out: undecoded results, faults, and
the server's own requests and notifications. `wire.py` is the interface, `jsonrpc.py` the messages;
`exchange.py` matches answers to the requests of `pending.py`; `stdio.py`, `streamable.py`, `sse.py`
and `in_process.py` are the transports. `process.py` starts processes: it orders them from
`warden.py`, a separate process that outlives us just long enough to end them, and imports nothing
but what confines them. It must not know which server should be up, or what a result means.
"""
