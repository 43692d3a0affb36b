"""What is written as TOML reads the same."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from multitap.config.edit.toml_edit import to_toml

texts = st.text(st.characters(exclude_categories=["Cs"]))
plain = (
    texts
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)


@given(st.dictionaries(texts, values, max_size=4))
def test_all_data_survives(data):
    assert tomllib.loads(to_toml(data)) == data


def test_tables_have_headers_and_inner_ones_are_inline():
    data = {"cap": 1, "servers": {"a b": {"command": "x", "env": {"K": "v"}}}}

    assert to_toml(data) == 'cap = 1\n\n[servers."a b"]\ncommand = "x"\nenv = { K = "v" }'
