"""Modules that are imported on first use."""

import sys
import threading

from multitap.later import Later, load


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
