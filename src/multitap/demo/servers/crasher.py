"""A server that cannot start and says why on its standard error."""

import sys

if __name__ == "__main__":
    sys.stderr.write("crasher: no API key given\n")
    sys.exit(3)
