"""The HTTP client: connections, pools, proxies, TLS, streamed bodies.

In: a method, an address, headers and a body. Out: a `Response`, or a fault that says whether
the other side may have seen the request. It must not know what the bodies mean.
"""
