"""A server that starts and never says a word."""

import signal

if __name__ == "__main__":
    signal.pause()
