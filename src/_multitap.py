"""The first module of the `multitap` command: Ctrl-C ends it without a traceback from here on.

It is outside of the package, whose own import takes several milliseconds.
"""

__all__ = ["main"]

try:
    from multitap.cli import main
except KeyboardInterrupt:  # Python would show where in the imports it was
    raise SystemExit(130) from None
