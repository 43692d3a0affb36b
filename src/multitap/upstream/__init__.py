"""The life of one server: connect, list, watch, lose, restart.

In: a server's configuration and the requests for it. Out: results, offers, events, and failures
that a person can act on. One task owns one link. It must not know the names that callers use, or
any other server.
"""
