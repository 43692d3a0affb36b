"""Programs that run while a test looks at them."""

import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def process(program):
    with subprocess.Popen(
        [sys.executable, "-S", "-c", f"print(flush=True)\n{program}"], stdout=subprocess.PIPE
    ) as running:
        running.stdout.readline()
        try:
            yield running
        finally:
            running.kill()
