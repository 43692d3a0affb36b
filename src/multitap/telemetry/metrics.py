"""Counters, gauges and histograms, and the text in which Prometheus reads them.

Written by us: `prometheus-client` needs 118 ms for 500 tools, on the loop or competing with it, and
observes into locked objects that several workers cannot add up.
"""

import hashlib
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec

OPERATION_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds; the bounds that the MCP conventions of OpenTelemetry advise. Boards rely on them."""
OVERHEAD_BOUNDS = (
    *(50e-6, 100e-6, 250e-6, 500e-6),
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
)
"""Seconds; most of what we add to a call is below the first bound of the conventions."""
LONGEST_LABEL = 128
"""Characters of a label's value; servers choose some of them."""
BYTES_PER_TOKEN = 4.2
"""Bytes per token of English definitions with current tokenizers; precise enough for a budget."""
TEXT = b"text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

_PLAIN = re.compile(r'[^"\\\n]*')
_DIGEST = 8  # digits, which keep two long labels apart


Exemplar = tuple[str, float, float]
"""A trace, a value of it, and when that was observed."""


class Histogram(msgspec.Struct, array_like=True):
    """How often values fell between two bounds."""

    counts: list[int]
    """One for each bound, with the values up to it and above the one before; the rest."""
    sum: float = 0.0
    exemplars: dict[int, Exemplar] = {}
    """The last recorded value of each count: a slow call stays in sight behind fast ones."""

    @classmethod
    def empty(cls, bounds: Sequence[float]) -> "Histogram":
        return cls([0] * (len(bounds) + 1))

    def observe(self, value: float, bounds: Sequence[float]) -> None:
        """Count a value; `bounds` are those that it was made with."""
        self.counts[bisect_left(bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float], bounds: Sequence[float]) -> None:
        """Count many values, which costs a fraction for each."""
        for place, times in Counter(map(partial(bisect_left, bounds), values)).items():
            self.counts[place] += times
        self.sum += sum(values)

    def plus(self, other: "Histogram") -> "Histogram":
        pairs = zip(self.counts, other.counts, strict=True)
        exemplars = self.exemplars | other.exemplars
        for place in self.exemplars.keys() & other.exemplars.keys():
            both = self.exemplars[place], other.exemplars[place]
            exemplars[place] = max(both, key=lambda exemplar: exemplar[2])
        return Histogram([a + b for a, b in pairs], self.sum + other.sum, exemplars)


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: its name, meaning and labels."""

    name: str
    """As Prometheus shows it; that of a counter ends in `_total`."""
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Of a histogram."""
    is_common: bool = False
    """Whether all workers of a gateway measure the same, so that it is not added up."""


Labels = tuple[str, ...]
"""The values of a family's labels; an empty one is left out."""
Samples = dict[str, list[tuple[Labels, float | Histogram]]]
"""What was measured, by the name of the family."""


def add_up(families: Iterable[Family], parts: Sequence[Samples]) -> Samples:
    """The samples of several processes as those of one; no labels occur twice in a family."""
    total: Samples = {}
    for family in families:
        values: dict[Labels, float | Histogram] = {}
        for labels, value in (pair for part in parts for pair in part.get(family.name, ())):
            before = values.get(labels)
            if before is None:
                values[labels] = value
            elif isinstance(before, Histogram) and isinstance(value, Histogram):
                values[labels] = before.plus(value)
            elif not isinstance(before, Histogram) and not isinstance(value, Histogram):
                values[labels] = max(before, value) if family.is_common else before + value
        total[family.name] = [*values.items()]
    return total


def write_text(
    families: Iterable[Family],
    samples: Mapping[str, Sequence[tuple[Labels, float | Histogram]]],
    *,
    is_open: bool = False,
) -> str:
    """The samples in Prometheus' text format, or in OpenMetrics'."""
    lines = [
        line
        for family in families
        if samples.get(family.name)
        for line in _family_lines(family, samples[family.name], is_open=is_open)
    ]
    if is_open:
        lines.append("# EOF\n")
    return "".join(lines)


def wants_open_metrics(accept: bytes) -> bool:
    """Whether a reader prefers OpenMetrics, by its `Accept` header."""
    return b"application/openmetrics-text" in accept


def _family_lines(
    family: Family, samples: Iterable[tuple[Labels, float | Histogram]], *, is_open: bool
) -> Iterator[str]:
    name = family.name
    # OpenMetrics names a counter without its suffix
    title = name.removesuffix("_total") if is_open else name
    yield f"# HELP {title} {family.help}\n# TYPE {title} {family.kind}\n"
    bounds = (*(f'le="{bound!r}"}} ' for bound in family.bounds), 'le="+Inf"} ')
    for labels, value in samples:
        pairs = zip(family.labels, labels, strict=True)
        text = ",".join([f'{label}="{label_value(text)}"' for label, text in pairs if text])
        if isinstance(value, Histogram):
            head, total = f"{name}_bucket{{{text}{',' if text else ''}", 0
            # only OpenMetrics has exemplars
            exemplars = value.exemplars if is_open else {}
            for place, (bound, count) in enumerate(zip(bounds, value.counts, strict=True)):
                total += count
                mark = _exemplar(exemplars[place]) if place in exemplars else ""
                yield f"{head}{bound}{total}{mark}\n"
            rest = f"{{{text}}}" if text else ""
            yield f"{name}_sum{rest} {value.sum:.9g}\n{name}_count{rest} {total}\n"
        else:
            yield f"{name}{{{text}}} {_number(value)}\n" if text else f"{name} {_number(value)}\n"


def _exemplar(exemplar: Exemplar) -> str:
    trace_id, value, at = exemplar
    return f' # {{trace_id="{trace_id}"}} {value:.9g} {at:.3f}'


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.9g}"


def label_value(text: str) -> str:
    """A label's value as it is written: short, escaped, and different for different texts."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) > LONGEST_LABEL:
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
        text = f"{text[: LONGEST_LABEL - _DIGEST - 1]}~{digest}"
    if _PLAIN.fullmatch(text):
        return text
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
