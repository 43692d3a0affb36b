"""What `make` does with tests that fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_for

ROOT = Path(__file__).parents[1]
FLAKY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({failures}))
def test_flaky(number, request):
    tried = Path(request.config.rootpath, f"tried-{{number}}")
    assert tried.exists() or tried.touch()
"""
_OTHERS = ("PYTEST_", "MAKE", "MFLAGS", "RETRY", "WORKERS")
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make(folder, tests, *options, target="fast", **environment):
    """`make fast` in a project that has only these tests."""
    shutil.copy(ROOT / "Makefile", folder)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nmarkers = ["slow", "wide"]\n'
        'addopts = ["-q", "-p", "no:langsmith_plugin", "-p", "no:anyio"]\n'
    )
    (folder / "test_it.py").write_text(tests)
    old = [f"--assume-old={target}" for target in ("setup", "lint")]
    command = ["make", *old, "WORKERS=1", *options, target]
    # not as a part of the suite that runs this test, or of the `make` that runs that
    own = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
    return subprocess.run(
        command,
        cwd=folder,
        env=own | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_test_that_failed_on_a_busy_machine_is_run_again_alone(tmp_path):
    ended = make(tmp_path, FLAKY.format(failures=2))

    assert ended.returncode == 0, ended.stderr
    _, again = ended.stdout.split("again, alone:\n")
    assert again.splitlines()[:2] == ["test_it.py::test_flaky[0]", "test_it.py::test_flaky[1]"]


@pytest.mark.parametrize(
    ("tests", "options"),
    [
        pytest.param(FLAKY.format(failures=6), (), id="too many"),
        pytest.param(FLAKY.format(failures=1), ("RETRY=0",), id="switched off"),
        pytest.param("import nothing_of_this_name", (), id="not collected"),
    ],
)
def test_other_failures_are_final(tmp_path, tests, options):
    ended = make(tmp_path, tests, *options)

    assert ended.returncode == 2
    assert "again, alone" not in ended.stdout


def test_a_test_that_hangs_in_a_worker_shows_where_and_leaves_no_program(tmp_path):
    hanging = """
import subprocess
import threading
from pathlib import Path
import pytest

@pytest.mark.timeout(2)
def test_hanging(request):
    program = subprocess.Popen(["sleep", "600"])
    Path(request.config.rootpath, "pid").write_text(str(program.pid))
    threading.Event().wait(60)
"""
    hooks = "pytest_configure, pytest_timeout_set_timer, pytest_timeout_cancel_timer"
    (tmp_path / "conftest.py").write_text(f"from tests.conftest import {hooks}\n")
    ended = make(tmp_path, hanging, "RETRY=0", PYTHONPATH=str(ROOT))

    assert ended.returncode == 2
    assert "in test_hanging" in ended.stderr
    wait_for(lambda: not Path("/proc", (tmp_path / "pid").read_text()).exists())


def test_the_slow_tests_behind_one_that_ends_its_worker_run_too(tmp_path):
    deadly = """
import os
import pytest

pytestmark = pytest.mark.slow

@pytest.mark.parametrize("number", range(4))
def test_deadly(number):
    if number == 2:
        os._exit(1)
"""
    hook = "pytest_xdist_make_scheduler"
    (tmp_path / "conftest.py").write_text(f"from tests.conftest import {hook}\n")
    ended = make(tmp_path, deadly, "RETRY=0", target="slow", PYTHONPATH=str(ROOT))

    assert ended.returncode == 2
    assert "1 failed, 3 passed" in ended.stdout


def test_some_workers_run_fast_tests_while_others_wait_in_slow_ones(tmp_path):
    waiting = """
import threading
from pathlib import Path
import pytest

@pytest.mark.slow
def test_waiting(request):
    while not Path(request.config.rootpath, "computed").exists():
        threading.Event().wait(0.01)
"""
    computing = """
from pathlib import Path

def test_computing(request):
    Path(request.config.rootpath, "computed").touch()
"""
    for number in range(4):
        (tmp_path / f"test_a{number}.py").write_text(waiting)
        (tmp_path / f"test_b{number}.py").write_text(computing)
    hooks = "pytest_collection_modifyitems, pytest_xdist_make_scheduler"
    (tmp_path / "conftest.py").write_text(f"from tests.conftest import {hooks}\n")
    ended = make(tmp_path, computing, "RETRY=0", "WORKERS=2", target="tests", PYTHONPATH=str(ROOT))

    assert ended.returncode == 0, ended.stdout
    assert "9 passed" in ended.stdout


def test_a_worker_that_is_replaced_may_be_slow_to_collect(tmp_path):
    deadly = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(3))
def test_deadly(number, request):
    if number == 0:
        os._exit(1)
    Path(request.config.rootpath, "others-run").touch()
"""
    slow = """
import os
import threading
from pathlib import Path
from tests.conftest import pytest_xdist_make_scheduler

def pytest_collection_modifyitems(config):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw3":
        while not Path(config.rootpath, "others-run").exists():
            threading.Event().wait(0.01)
"""
    (tmp_path / "conftest.py").write_text(slow)
    for number in range(3):
        (tmp_path / f"test_a{number}.py").write_text(deadly)
    ended = make(tmp_path, deadly, "RETRY=0", "WORKERS=2", PYTHONPATH=str(ROOT))

    assert ended.returncode == 2
    assert "4 failed, 8 passed" in ended.stdout
