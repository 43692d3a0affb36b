"""A server that starts and never answers."""

import signal

if __name__ == "__main__":
    signal.pause()
