"""Measures the scanner on labelled definitions."""

import argparse
import sys

from bench.scanner import measure, samples

RECALL, FALSE_ALARMS = 0.95, 0.02


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.scanner", description=__doc__)
    parser.add_argument("--names", action="store_true", help="name the failures of the tuned part")
    names = parser.parse_args().names
    parts = {"tuned": samples.tuned(), "held out": samples.held_out()}
    is_good = True
    for part, some in parts.items():
        found = measure.figures(some)
        is_good &= found.recall >= RECALL and found.false_alarms <= FALSE_ALARMS
        print(
            f"{part:<9} recall {found.recall:.3f} of {found.poisoned} poisoned, "
            f"false alarms {found.false_alarms:.4f} of {found.real} real, "
            f"{found.micros:.0f} us for a definition"
        )
        if names and part == "tuned":
            print(*(f"  missed: {one}" for one in found.missed), sep="\n")
            print(*(f"  alarm: {one}" for one in found.alarms), sep="\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
