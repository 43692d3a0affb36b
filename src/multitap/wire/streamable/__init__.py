"""Streamable HTTP in both eras, and what it shares with the legacy transport.

In: an address with its headers. Out: a wire. `http_origin` sends requests to one origin and
nowhere else. It must not know how a connection works: that is `multitap.http`.
"""
