"""The command line: what a person types, and what they see.

In: the words of a command line. Out: data on standard output, messages on standard error, an exit
code. `commands` has the wording of every command and option; the packages inside do the work,
grouped by what they act on, and are imported when a command runs. It must not use anything that
another program could not: only hubs, the configuration and running gateways.
"""

import gc

__all__ = ["main"]

_RARELY = 100_000
"""New objects after which garbage is looked for: what is imported is none."""


def main() -> None:
    """What `multitap` does when it is typed."""
    # before the imports: they make most of what a command ever makes
    gc.set_threshold(_RARELY)
    from multitap.cli.program import start  # noqa: PLC0415 - see above

    start()
