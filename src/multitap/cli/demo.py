"""`multitap demo`: a hub at work on bundled servers."""

from multitap.cli.exits import Exit
from multitap.cli.running import run_async
from multitap.demo.__main__ import main


def demo() -> int:
    """Run it to its end."""
    run_async(main)
    return Exit.DONE
