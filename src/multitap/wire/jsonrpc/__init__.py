"""JSON-RPC: envelopes, framing, requests under way and what comes unasked.

In: bytes and `Request` values. Out: answers matched to their requests, params and results left
undecoded. It must not know how the bytes travel.
"""
