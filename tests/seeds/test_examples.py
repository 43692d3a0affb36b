import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds.files import write
from tests.trusting import trust
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "seeds").glob("*.py"))
CALCULATOR = {
    "transport": "stdio",
    "command": sys.executable,
    "args": ["-m", "multitap.demo.servers.calculator"],
}
PRINTED = {
    "agent_core": ["  - notebook_write: ", "\n42.0\nFalse 3\n"],
    "excelmanus": ["['calculator']\n42.0\n43.0\n"],
    "kode": ["42.0\nkeep calculator\n"],
    "spec07": [
        "['calculator is disconnected', 'missing is disconnected']",
        "calculator is connected with 3 tools; None",
        "missing is error with 0 tools; the program 'no-such-program' is not on the PATH",
    ],
    "tools": ["shout - The text in capitals.", "HELLO", "divided by zero"],
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_is_shown(example, project, home):
    for name in ("mcp.json", ".kode.json"):
        write(project / name, {"mcpServers": {"calculator": CALCULATOR}})
    trust(project)
    done = subprocess.run(
        [sys.executable, example],
        env={**os.environ, "HOME": str(home)},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for words in PRINTED[example.stem]:
        assert words in done.stdout
    assert not done.stderr
    assert example.read_text().partition('"""\n\n')[2] in (ROOT / "docs" / "seeds.md").read_text()


@pytest.mark.parametrize("name", ["excelmanus", "kode"])
def test_an_example_in_an_untrusted_folder_says_what_to_do(name, project, home):
    for file in ("mcp.json", ".kode.json"):
        write(project / file, {"mcpServers": {"calculator": CALCULATOR}})
    example = ROOT / "examples" / "seeds" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, example],
        env={**os.environ, "HOME": str(home)},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    words = f"1 server of {project} is not trusted and not used: run `multitap trust`"

    assert f"UntrustedWarning: {words}\n" in done.stderr
    assert f"{example}:" in done.stderr
    assert re.search(f"no tool named .*\nhint: .*{re.escape(words)}", done.stderr)
