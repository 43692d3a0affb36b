import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parent.parent
ENVIRONMENT = Path(sys.executable).parent


def run(*command, state, timeout=PATIENCE):
    """What a program prints, with a state directory of its own."""
    path = f"{ENVIRONMENT}{os.pathsep}{os.environ['PATH']}"  # where the development uvx is
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PATH": path, "XDG_STATE_HOME": str(state)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_shows_the_quickstart():
    program = (ROOT / "examples" / "quickstart.py").read_text().partition('"""\n\n')[2]

    assert program in (ROOT / "README.md").read_text()


def test_the_page_on_environments_shows_the_example():
    program = (ROOT / "examples" / "environment.py").read_text().partition('"""\n\n')[2]

    assert program in (ROOT / "docs" / "environment.md").read_text()


@pytest.mark.parametrize("name", ["quickstart", "sync_quickstart"])
def test_the_quickstarts_list_tools_and_call_one(name, tmp_path):
    printed = run(f"examples/{name}.py", state=tmp_path)

    assert "calculator_divide - Divide one number by another." in printed
    assert printed.endswith("42.0\n")


def test_an_environment_has_tools_of_its_own_and_of_servers_for_each_agent(tmp_path):
    printed = run("examples/environment.py", state=tmp_path)

    assert "greet - Say hello.\n" in printed
    assert "sums_divide - Divide one number by another." in printed
    assert "\nHello, Ada!\n42.0\nthe tool 'sums_divide' may not be used here" in printed


def test_a_server_may_ask_a_host_that_runs_on_plain_asyncio(tmp_path):
    printed = run("examples/plain_asyncio.py", state=tmp_path)

    assert printed == (
        "booking asks: A seat at the window on LH 400?\nLH 400: a seat at the window\n"
    )


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_server_may_ask_a_web_application(loop, tmp_path):
    command = ["-m", "uvicorn", "examples.with_fastapi:app", "--port", "0", "--loop", loop]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, *command],
        env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as host:  # fmt: skip
        try:
            running = next(line for line in host.stderr if "running on" in line)
            address = re.search(r"http://\S+", running)[0]
            with urllib.request.urlopen(f"{address}/book/LH400", timeout=PATIENCE) as response:
                told = response.read()
        finally:
            host.terminate()
        printed, _ = host.communicate(timeout=PATIENCE)

    assert json.loads(told) == "LH400: a seat at the window"
    assert "booking asks: A seat at the window on LH400?\n" in printed
    assert host.returncode in {0, -signal.SIGTERM}


def test_the_demo_shows_states_tools_calls_failures_and_recovery(tmp_path):
    printed = run("-m", "multitap.demo", state=tmp_path)

    assert "calculator   connected     3 tools" in printed
    assert "notebook_write " in printed
    assert "calculator_add(a=2, b=40) -> 42" in printed
    assert "1 cannot be divided by zero" in printed
    assert "last output: crasher: no API key given" in printed
    assert "calculator_mean(numbers=[1, 2, 6]) -> 3" in printed
    assert printed.endswith("no process of it is left.\n")


@pytest.mark.slow
@pytest.mark.wide
@pytest.mark.network
@pytest.mark.skipif(shutil.which("npx") is None, reason="npx is not installed")
@pytest.mark.skipif(
    shutil.which("uvx", path=f"{ENVIRONMENT}{os.pathsep}{os.environ['PATH']}") is None,
    reason="uvx is not installed",
)
def test_five_real_servers_are_up_beside_two_bad_ones_and_survive_kill_and_stop(tmp_path):
    printed = run("examples/five_servers.py", state=tmp_path, timeout=180)

    assert "broken is error (the program 'no-such-program' is not on the PATH)" in printed
    for server in ("everything", "filesystem", "memory", "time", "git"):
        assert f"\n{server}_" in printed
        assert f"{server} is disconnected (it was terminated by SIGKILL)" in printed
        assert f"{server} is disconnected (its process is stopped" in printed
    assert "hanging is connected" not in printed
