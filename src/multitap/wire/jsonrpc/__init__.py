"""JSON-RPC: envelopes, framing, pending requests, and the server's own messages.

In: bytes and `Request` values. Out: answers matched to their requests, with undecoded params and
results. It must not know how the bytes travel.
"""
