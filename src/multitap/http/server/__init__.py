"""Requests of other machines: connections, limits, who is let in, responses.

In: a listening socket and an `HttpApp`. Out: an `HttpRequest` for each complete request, and its
response or stream of events. `access` is where a request is refused. It must not know what
the bodies mean.
"""
