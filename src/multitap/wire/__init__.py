"""Messages to and from one server, however they travel.

In: a server's expanded configuration and `Request` values. Out: undecoded results, faults, and
what the server says by itself. `wire` is the interface; each way of travelling has a room or a
file. It must not know which server is meant to be up, nor what a result means.
"""
