"""The zoo's door: `server.py MODE [--option value]...` is one server on stdin and stdout."""

import importlib
import os
import sys

if not __package__:  # run as a script, isolated from everything that is not the standard library
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../.."))  # noqa: PTH100 - pathlib is slow

from tests.zoo.honest import Honest

GROUPS = ("protocol", "start", "size", "flood", "listing", "lifecycle", "schema", "security")


def find(mode):
    """The class of a mode; only as many files are read as it takes."""
    for group in GROUPS:
        if mode in Honest.modes:
            break
        importlib.import_module(f"tests.zoo.faults.{group}")
    return Honest.modes[mode]


def parse(words):
    """`--name value` pairs as a dict; `--once` stands alone."""
    rest = iter(words)
    return {word.removeprefix("--"): "" if word == "--once" else next(rest) for word in rest}


def main(mode, *words):
    options = parse(words)
    server = find(mode)(options)
    if "once" in options and server.recorded("starts"):
        server = Honest(options)  # healed: the fault was shown at the first start
    server.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
