"""What the seeds' users write down."""

import json

from multitap import StdioServer
from tests.zoo.modes import command


def zoo(mode="good", *options, **more):
    """An entry that starts a server of the zoo, as kode and ExcelManus spell it."""
    program, *args = command(mode, *options)
    return {"transport": "stdio", "command": program, "args": args, **more}


def local(mode="good", *options, **more):
    """The same as SPEC-07 and agent-core spell it."""
    return {"type": "local", "command": command(mode, *options), **more}


def program(mode="good", *options, **more):
    """The same as our model."""
    name, *args = command(mode, *options)
    return StdioServer(command=name, args=tuple(args), **more)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path
