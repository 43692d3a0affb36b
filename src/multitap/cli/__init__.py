"""What a person types, and what they get to see.

In: the words of a command line. Out: data on standard output, all other words on standard error,
an exit code. `commands` has the wording of every command and its options; the rooms have what the
commands do, by what they act on, and are imported when one runs. It must not know more than any
other program could: it uses hubs, configuration and running gateways as everybody does.
"""

from multitap.cli.program import main

__all__ = ["main"]
