import subprocess
import sys

import pytest

import multitap


def in_a_fresh_interpreter(program):
    return subprocess.check_output([sys.executable, "-c", program], text=True).split()


@pytest.mark.parametrize("name", multitap.__all__)
def test_every_public_name_is_there(name):
    assert getattr(multitap, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'multitap' has no attribute 'nonsense'"):
        multitap.nonsense  # noqa: B018 - looking is the test


@pytest.mark.parametrize(
    "program",
    ["import multitap", "import multitap.config", "from multitap import Settings, StdioServer"],
)
def test_importing_what_needs_no_sdk_does_not_import_it(program):
    program += "; import sys; print('mcp' in sys.modules, 'mcp_types' in sys.modules)"

    assert in_a_fresh_interpreter(program) == ["False", "False"]


def test_star_import_gives_the_public_names():
    names = in_a_fresh_interpreter("from multitap import *; print(*dir())")

    assert set(multitap.__all__) <= set(names)
