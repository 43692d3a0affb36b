import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.config import StdioServer
from multitap.supervisor import Plan, plan

ONE, TWO = StdioServer(command="one"), StdioServer(command="two")
configurations = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([ONE, TWO]))


@pytest.mark.parametrize(
    ("running", "wanted", "expected", "words"),
    [
        pytest.param({}, {"a": ONE}, Plan(start=frozenset("a")), "start a", id="added"),
        pytest.param({"a": ONE}, {}, Plan(stop=frozenset("a")), "stop a", id="removed"),
        pytest.param(
            {"a": ONE}, {"a": TWO}, Plan(replace=frozenset("a")), "replace a", id="changed"
        ),
        pytest.param({"a": ONE}, {"a": ONE}, Plan(keep=frozenset("a")), "keep a", id="unchanged"),
        pytest.param({}, {}, Plan(), "nothing to do", id="empty"),
    ],
)
def test_plan(running, wanted, expected, words):
    assert plan(running, wanted) == expected
    assert str(plan(running, wanted)) == words


@given(configurations, configurations)
def test_carrying_out_a_plan_makes_running_equal_to_wanted(running, wanted):
    todo = plan(running, wanted)
    result = {name: config for name, config in running.items() if name not in todo.stop}
    result |= {name: wanted[name] for name in todo.start | todo.replace}

    assert result == wanted
    assert todo.keep | todo.replace | todo.start == wanted.keys()
    assert all(running[name] == wanted[name] for name in todo.keep)
