"""Messages to and from one server, over any transport.

In: a server's expanded configuration and `Request` values. Out: undecoded results, faults, and
the server's own requests and notifications. `wire` is the interface; each transport is a package or
a file. It must not know which server should be up, or what a result means.
"""
