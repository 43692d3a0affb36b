"""One server's life: connected, listed, watched, lost and brought back.

In: a server's configuration and the requests for it. Out: results, offers, events and a failure
in words a person can act on. One task owns one link. It must not know names that
callers use, nor any other server.
"""
