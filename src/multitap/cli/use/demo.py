"""`multitap demo`: a hub at work with the bundled servers, or one of them alone."""

import runpy

import click

from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit

# `demo_settings` has them, too, but brings the whole configuration with it
BUNDLED = ("calculator", "clock", "notebook")


@click.command()
@click.argument("server", required=False, type=click.Choice(BUNDLED))
def demo(server: str | None) -> int:
    """Show a hub at work with the bundled servers

    With SERVER, run only that one, on standard input and output: `multitap add sums -- multitap
    demo calculator` tries Multitap without a network.
    """
    if server is not None:
        runpy.run_module(f"multitap.demo.servers.{server}", run_name="__main__")
        return Exit.DONE
    from multitap.demo.__main__ import main  # noqa: PLC0415 - a whole program

    run_async(main)
    return Exit.DONE
