"""Requests to other machines: connections, pools, proxies, TLS, bodies as they come.

In: a method, an address, headers and a body. Out: a `Response`, or a fault that says whether
the other side may have seen the request. It must not know what the bodies mean.
"""
