import os
import subprocess
import sys

import pytest

from tests.cluster.redis_server import free_port
from tests.gateway import task_server
from tests.waiting import PATIENCE, wait_for


@pytest.fixture
def run(tmp_path):
    """Runs a command in an empty home, with one server that has tasks."""
    config = tmp_path / "multitap.toml"
    config.write_text(
        f'state_dir = "{tmp_path / "state"}"\n'
        f"[servers.s]\ncommand = {sys.executable!r}\nargs = [{task_server.__file__!r}, 'old']\n"
    )
    env = {**os.environ, "HOME": str(tmp_path), "MULTITAP_CONFIG": str(config)}
    env |= {f"XDG_{kind}_HOME": str(tmp_path / kind) for kind in ("DATA", "STATE", "CONFIG")}
    env["XDG_RUNTIME_DIR"] = str(tmp_path)

    def run(*words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "multitap", *words],
            capture_output=True, text=True, env=env, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout.strip() or done.stderr.strip()

    run.env = env
    return run


@pytest.fixture
def gateway(run, tmp_path):
    log = tmp_path / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "multitap", "serve", "--http", f"127.0.0.1:{free_port()}"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=run.env,
        )  # fmt: skip
    wait_for(lambda: "press Ctrl-C" in log.read_text())
    yield process
    process.terminate()
    process.wait(30)


@pytest.mark.usefixtures("gateway")
def test_a_detached_call_is_followed_at_the_prompt(run):
    quick = run("call", "s_greet", "name=Ada", "--detach").split()[0]
    endless = run("call", "s_endless", "--detach").split()[0]
    wait_for(lambda: run("tasks", quick) == "Hello, Ada!")
    listed = run("tasks")
    cancelled = run("tasks", endless, "--cancel", code=1)
    unknown = run("tasks", "made-up", code=2)

    assert "s_endless" in listed
    assert "working" in listed
    assert "cancelled" in cancelled
    assert "no task 'made-up'" in unknown


def test_without_a_gateway_there_is_nobody_to_run_it(run):
    assert "no gateway is serving" in run("tasks", code=4)
