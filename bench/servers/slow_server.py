"""A stdio server that takes its time for each call, and any number of calls at once."""

import sys
from threading import Timer

from answers import answer


def main(seconds):
    for line in sys.stdin.buffer:
        if b'"tools/call"' in line:
            timer = Timer(float(seconds), write, [line])
            timer.daemon = True  # nobody reads what comes after the end
            timer.start()
        else:
            write(line)


def write(line):
    reply = answer(line)
    if reply is not None:
        sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
