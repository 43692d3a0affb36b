"""A stdio server that costs next to nothing, so that the client's cost is what is seen."""

import sys

from answers import GROW, GROWN, answer, note


def main(era="handshake", tools="2", tally=None):
    for line in sys.stdin.buffer:
        if tally:
            note(tally, line)
        reply = answer(line, era=era, tools=int(tools))
        if GROW in line:
            tools, reply = int(tools) + 1, reply + b"\n" + GROWN
        if reply is not None:
            sys.stdout.buffer.write(reply + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
