"""A hub at work on bundled servers; `python -m multitap.demo` shows it.

In: nothing but the servers in `servers`. Out: a status table that follows what happens, and calls
that work and fail. It must not use more than the public interface: it shows what users can do.
"""
