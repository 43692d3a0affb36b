"""What `import multitap` costs."""

import subprocess
import sys

from bench.report import Promise, Report, milli

LIMIT = 60.0
PROGRAM = """
import sys, time
started = time.perf_counter()
import multitap
print(time.perf_counter() - started, "mcp" in sys.modules)
"""


async def run(*, quick: bool) -> Report:
    seconds, slow = min(_once() for _ in range(3 if quick else 10))
    rows = [("`import multitap`", milli(seconds), "yes" if slow else "no")]
    promises = [
        Promise("`import multitap`", LIMIT, seconds * 1e3, " ms"),
        Promise("the SDK imported with it", 0, float(slow)),
    ]
    return Report("Import", ("", "time", "imports `mcp`"), rows, promises)


def _once() -> tuple[float, bool]:
    words = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True).split()
    return float(words[0]), words[1] == "True"
