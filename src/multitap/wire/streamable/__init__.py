"""Streamable HTTP in both eras, and what it shares with legacy SSE.

In: an address with its headers. Out: a wire. `http_origin` sends requests to one origin and
nowhere else. It must not know how a connection works: `multitap.http` does.
"""
