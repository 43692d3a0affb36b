"""Reads what Prometheus reads, and refuses what it would refuse."""

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
COMMENT = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)")
TYPES = {"counter", "gauge", "histogram"}


def parsed(exposition, *, is_open=False):
    """Samples by name and labels; fails on whatever the text format does not allow."""
    samples, types, family = {}, {}, None
    if is_open:
        assert exposition.endswith("# EOF\n")
        exposition = exposition.removesuffix("# EOF\n")
    assert not exposition or exposition.endswith("\n")
    for line in exposition[:-1].split("\n") if exposition else ():
        if comment := COMMENT.fullmatch(line):
            kind, family, rest = comment.groups()
            if kind == "TYPE":
                assert rest in TYPES
                assert family not in types
                types[family] = rest
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        name, labels = sample[1], tuple(re.findall(LABEL, sample[2] or ""))
        assert base_of(name, types[family], is_open=is_open) == family
        assert len(dict(labels)) == len(labels)
        key = name, frozenset(labels)
        assert key not in samples
        samples[key] = float(sample[sample.lastindex])
    return samples


def base_of(name, kind, *, is_open):
    if kind == "histogram":
        return re.sub("_(bucket|sum|count)$", "", name)
    return name.removesuffix("_total") if kind == "counter" and is_open else name


def value(samples, name, **labels):
    """The value of the sample with exactly these labels."""
    return samples[name, frozenset(labels.items())]
