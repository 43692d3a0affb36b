"""A hub at work with bundled servers; `python -m multitap.demo` shows it.

In: only the servers in `servers`. Out: a status table that follows what happens, and calls that
succeed and fail. It must not use anything but the public interface: it shows what users can do.
"""
