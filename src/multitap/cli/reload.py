"""`multitap reload`: the running hub shall take over what the files say now."""

from multitap.cli import problems
from multitap.cli.asked import Asked
from multitap.cli.configured import configured
from multitap.cli.exits import Exit
from multitap.cli.output import complain


def reload(asked: Asked) -> int:
    """Check the files first: a hub keeps what it has while they cannot be read."""
    loaded = configured(asked)
    problems.show(problems.serious(loaded.problems))
    if loaded.errors:
        return Exit.CONFIG
    complain(
        "no hub is serving that could be told",
        "nothing to do: every command reads the files anew",
    )
    return Exit.UNAVAILABLE
