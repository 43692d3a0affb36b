"""The HTTP server: connections, limits, access, responses.

In: a listening socket and an `HttpApp`. Out: an `HttpRequest` for each complete request, and its
response or event stream; `HttpApp.admit` is where a request is refused. It must not know what the
bodies mean.
"""
