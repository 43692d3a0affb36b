"""Runs only if `-m soak` asks for it, and prints the figures at the end."""

from pathlib import Path

import pytest

HERE = f"{Path(__file__).parent}/"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if "soak" in config.option.markexpr:
        return
    ours = {item for item in items if str(item.path).startswith(HERE)}
    config.hook.pytest_deselected(items=list(ours))
    items[:] = [item for item in items if item not in ours]


@pytest.fixture
def figures(record_property):
    """Takes what was measured, by name, to be printed whether or not the test passes."""

    def record(**measured):
        for name, value in measured.items():
            record_property(name, value)

    return record


def pytest_terminal_summary(terminalreporter):
    told = {}
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call" and "tests/soak" in report.nodeid:
            measured = told.setdefault(report.nodeid.partition("[")[0], {})
            for name, value in report.user_properties:  # parts of one test are added up
                measured[name] = measured[name] + value if name in measured else value
    if any(told.values()):
        terminalreporter.section("figures")
    for test, measured in told.items():
        terminalreporter.line(test)
        for name, value in measured.items():
            terminalreporter.line(f"  {name.replace('_', ' '):<28} {value}")
