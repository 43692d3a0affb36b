"""The command line: its commands, and what they print.

In: the words of a command line. Out: data on standard output, messages on standard error, an exit
code. `app` lists the commands; each is a file in the folder of its section, with its options and
its work, and is imported when it runs or shows its help. `options`, `configuration`, `edits` and
`terminal` are what commands share. It must not use anything that another program could not: only
hubs, the configuration and running gateways.
"""

import gc

__all__ = ["main"]

_RARELY = 100_000
"""New objects between garbage collections: imported modules are not garbage."""


def main() -> None:
    """The entry point of `multitap`."""
    # before the imports, which create most objects of a command
    gc.set_threshold(_RARELY)
    from multitap.cli.app import start  # noqa: PLC0415 - see above

    start()
