"""Short ways to read a text as a configuration."""

from pathlib import Path

from multitap.config import Layer, Merged, Severity, merge, read_document, read_file, read_text

FIXTURES = Path(__file__).parent / "fixtures"
FOLDER = Path("/work/shop")


def reading(text, name="config.json", dialect=None, folder=FOLDER):
    document, problems = read_text(text, Path(name))
    assert document is not None, problems
    return read_document(document, folder, dialect_name=dialect)


def merged(text, name="config.json", dialect=None, folder=FOLDER) -> Merged:
    return merge([Layer(reading(text, name, dialect, folder))])


def fixture(name, dialect=None) -> Merged:
    document, problems = read_file(FIXTURES / name)
    assert document is not None, problems
    return merge([Layer(read_document(document, FOLDER, dialect_name=dialect))])


def given(model):
    """What was said, without our defaults."""
    return {name: getattr(model, name) for name in model.given_fields}


def said(problems, *severities):
    """Problems in short: where, which key, what."""
    return [
        (problem.place.line, problem.place.column, problem.key, problem.message)
        for problem in problems
        if not severities or problem.severity in severities
    ]


def errors(problems):
    return said(problems, Severity.ERROR)
