import inspect
import os
import shutil

import pytest

from tests.test_examples import ENVIRONMENT, ROOT, run

FRAMEWORKS = ("openai_agents", "pydantic_ai", "langgraph")


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_uses_the_tools_of_a_hub(framework, tmp_path):
    printed = run(f"examples/with_{framework}.py", state=tmp_path, timeout=180)

    assert printed == "a tool said: 42.0\nthe agent says: It is 42.\n"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_is_hooked_up_in_no_more_than_15_lines(framework):
    lines = (ROOT / "examples" / f"with_{framework}.py").read_text().splitlines(keepends=True)
    start = next(at for at, line in enumerate(lines) if line.startswith("def hooked_up"))

    assert len(inspect.getblock(lines[start:])) <= 15


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(shutil.which("npx") is None, reason="npx is not installed")
@pytest.mark.skipif(
    shutil.which("uvx", path=f"{ENVIRONMENT}{os.pathsep}{os.environ['PATH']}") is None,
    reason="uvx is not installed",
)
def test_an_agent_answers_although_a_server_is_killed_in_the_middle(tmp_path):
    printed = run("examples/agent.py", state=tmp_path, timeout=180)

    assert printed.startswith("the model is a script at http://127.0.0.1:")
    assert "  (the filesystem server is killed)\n" in printed
    assert "agent: It says 'remember the milk', which is 3 words. In Tokyo it is 2" in printed
    assert "(done, " in printed
    assert "another client sees: count_words filesystem_" in printed
    assert " time_get_current_time" in printed
    assert printed.endswith("and counts: 2\n")
