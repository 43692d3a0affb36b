"""Modules that are imported on first use."""

import pkgutil
import subprocess
import sys
import threading

import multitap
from multitap.later import Later, load

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
    try:
        exec(f"from {{name}} import nothing")
    except ImportError:
        continue
    raise AssertionError(name)
"""


def test_a_package_has_no_names_that_it_has_not():
    subprocess.run([sys.executable, "-c", ASKED.format(names=PACKAGES)], check=True)


async def test_a_slow_import_does_not_run_in_the_thread_of_the_loop(tmp_path, monkeypatch):
    text = "import threading\nthread = threading.current_thread()\n"
    (tmp_path / "slow_to_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = Later("slow_to_import")
    try:
        await load(module, "thread")
        await load(module, "thread")

        assert module.thread is not threading.current_thread()
    finally:
        del sys.modules["slow_to_import"]
