"""`multitap demo`: a hub at work with the bundled servers."""

import click

from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit


@click.command()
def demo() -> int:
    """Show a hub at work with the bundled servers"""
    from multitap.demo.__main__ import main  # noqa: PLC0415 - a whole program

    run_async(main)
    return Exit.DONE
