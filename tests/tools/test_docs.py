import re
from pathlib import Path
from types import SimpleNamespace

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def page(capsys):
    """What the examples of the page define, and what they print."""
    names = {}
    for code in BLOCK.findall(PAGE.read_text()):
        exec(compile(code, PAGE.name, "exec"), names)
    return SimpleNamespace(**names, printed=capsys.readouterr().out)


class Client:
    """Answers with one call, as OpenAI does."""

    def __init__(self):
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, tools, **_):
        function = SimpleNamespace(name=tools[0]["function"]["name"], arguments='{"name": "Ada"}')
        message = SimpleNamespace(tool_calls=[SimpleNamespace(id="c1", function=function)])
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def test_the_examples_of_the_page_run(page):
    lines = page.printed.splitlines()

    assert lines[0] == "  - greet: Say hello to somebody."
    assert any(line.startswith("greet") and "may be null" in line for line in lines)
    assert lines[-1] == "True search_tools describe_tool call_tool"


async def test_the_turn_on_the_page_ends_with_the_tool_s_answer(page):
    messages = []
    await page.turn(Client(), page.registry, messages)

    assert messages[1:] == [{"role": "tool", "tool_call_id": "c1", "content": "hello Ada"}]
