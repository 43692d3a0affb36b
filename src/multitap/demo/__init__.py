"""A hub at work on bundled servers; `python -m multitap.demo` shows it."""
