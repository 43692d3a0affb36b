import pkgutil
import rlcompleter
import subprocess
import sys
from pathlib import Path

import pytest

import multitap
from multitap import seeds
from multitap.version import VERSION

ROOT = Path(__file__).parent.parent


def in_a_fresh_interpreter(program):
    return subprocess.check_output([sys.executable, "-c", program], text=True).split()


PUBLIC = [name for name in multitap.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name):
    assert getattr(multitap, name).__name__ == name


def test_people_and_their_completion_see_the_public_names():
    completer = rlcompleter.Completer({"multitap": multitap})
    completions = [completer.complete("multitap.Sy", n) for n in range(2)]

    assert {*PUBLIC, "__version__"} <= {*dir(multitap)}
    assert not {"TYPE_CHECKING", "logging"} & {*dir(multitap)}
    assert multitap.__version__ == VERSION
    assert completions[0].startswith("multitap.SyncHub")
    assert completions[1] is None


def test_classes_of_the_designs_are_in_a_room_of_their_own():
    page = (ROOT / "docs" / "reference-python.md").read_text()
    main, _, designs = page.partition("## Classes of the five designs")

    for name in seeds.__all__:
        assert getattr(seeds, name) is getattr(multitap, name)
        assert (f"multitap.{name}`" in main) == (name == "AgentEngine")
        assert (f"multitap.seeds.{name}`" in designs) == (name != "AgentEngine")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_public_types_fit_the_clients_of_models():
    program = ROOT / "examples" / "models_by_hand.py"
    checked = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout


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


PACKAGES = [
    "multitap",
    *(
        module.name
        for module in pkgutil.walk_packages(multitap.__path__, "multitap.")
        if module.ispkg
    ),
]
ASKED = """
import importlib
for name in {names}:
    package = importlib.import_module(name)
    assert not hasattr(package, "nothing"), name
    assert {{*getattr(package, "__all__", ())}} <= {{*dir(package)}}, name
    try:
        exec(f"from {{name}} import nothing")
    except ImportError:
        continue
    raise AssertionError(name)
"""


def test_a_package_has_no_names_that_it_has_not():
    subprocess.run([sys.executable, "-c", ASKED.format(names=PACKAGES)], check=True)
