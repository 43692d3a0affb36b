"""Recall, false alarms and cost of the scanner."""

from dataclasses import dataclass
from time import process_time

from multitap.trust.scanner import scan


@dataclass(frozen=True)
class Figures:
    """What became of one part of the samples."""

    poisoned: int
    real: int
    missed: tuple[str, ...]
    alarms: tuple[str, ...]
    micros: float
    """Of the processor, for one real definition."""

    @property
    def recall(self):
        return 1 - len(self.missed) / self.poisoned

    @property
    def false_alarms(self):
        return len(self.alarms) / self.real


def figures(samples):
    poisoned = [one for one in samples if one.is_poisoned]
    real = [one for one in samples if not one.is_poisoned]
    missed = tuple(one.label for one in poisoned if not scan(one.definition))
    began = process_time()
    alarms = tuple(one.label for one in real if scan(one.definition))
    micros = (process_time() - began) / len(real) * 1e6
    return Figures(len(poisoned), len(real), missed, alarms, micros)
