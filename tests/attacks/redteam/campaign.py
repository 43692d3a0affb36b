"""Runs all attacks with random seeds: `python -m tests.attacks.redteam.campaign --minutes 5`."""

import argparse
import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context

from tests.attacks.redteam import gateway_attacks, login_attacks, project_attacks, stranger_attacks
from tests.attacks.redteam.attack import try_attack

ATTACKS = {
    attack.name: attack
    for module in (stranger_attacks, project_attacks, gateway_attacks, login_attacks)
    for attack in module.ATTACKS
}
"""All attacks, by name."""


def run_slice(name, seed):
    """Try one attack with the cases of a seed, in a process of its own."""
    return try_attack(ATTACKS[name], seed)


class Campaign:
    """Counts what was tried, and reports what was found."""

    def __init__(self):
        self.tried, self.void = Counter(), Counter()
        self.why_void = {}
        self.found = {}
        self.began = time.monotonic()

    def note(self, outcome):
        self.tried[outcome.attack] += outcome.tried
        self.void[outcome.attack] += outcome.void
        if outcome.void:
            self.why_void[outcome.attack] = outcome.why_void
        if outcome.breach and outcome.attack not in self.found:
            after = time.monotonic() - self.began
            self.found[outcome.attack] = after
            print(
                f"\nFOUND after {after:.0f} s: {outcome.attack}\n"
                f"  {outcome.breach}\n"
                f"  parts: {outcome.parts}\n"
                f"  again: make attack ONLY={outcome.attack!r} SEED={outcome.seed}\n",
                flush=True,
            )

    def print_table(self, names):
        wide = max(map(len, names))
        print(f"\n{'ATTACK':{wide}}  CASES  VOID  FOUND")
        for name in names:
            found = f"after {self.found[name]:.0f} s" if name in self.found else "-"
            print(f"{name:{wide}}  {self.tried[name]:5}  {self.void[name]:4}  {found}")
        print(f"{sum(self.tried.values())} cases in {time.monotonic() - self.began:.0f} s")
        for name, reason in self.why_void.items():
            if self.void[name] == self.tried[name]:
                print(f"warning: no case of {name!r} reached its target: {reason}")


def run(names, minutes, *, seed=None, first=False, workers=2):
    """Run attacks in turns until the time is over; returns whether nothing was found."""
    campaign = Campaign()
    until = campaign.began + minutes * 60
    chance = random.Random(seed)
    queue = []
    running = set()
    # spawned: what is attacked starts threads, which do not survive a fork
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        while True:
            is_over = time.monotonic() > until or (first and campaign.found)
            while not is_over and len(running) < workers:
                if not queue:
                    queue = [name for name in names if name not in campaign.found]
                    chance.shuffle(queue)
                if not queue:
                    break
                number = seed if seed is not None else chance.randrange(2**32)
                running.add(pool.submit(run_slice, queue.pop(), number))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                campaign.note(future.result())
    campaign.print_table(names)
    return not campaign.found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--only", default="", help="part of the names of attacks")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", action="store_true", help="stop at the first finding")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    asked = parser.parse_args()
    names = [name for name in ATTACKS if asked.only in name]
    if not names:
        parser.error(f"there is no attack {asked.only!r}; there are: {', '.join(ATTACKS)}")
    held = run(names, asked.minutes, seed=asked.seed, first=asked.first, workers=asked.workers)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
