"""The command line: what a person types, and what they see.

In: the words of a command line. Out: data on standard output, messages on standard error, an exit
code. `commands` holds the wording of every command and option; the packages inside do the work,
grouped by what they act on, and are imported when a command runs. It must not use anything that
another program could not: only hubs, the configuration and running gateways.
"""

from multitap.cli.program import main

__all__ = ["main"]
