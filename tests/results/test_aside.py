"""Large results are shaped in another process, and come out the same."""

import msgspec
import pytest
from anyio import CapacityLimiter

from multitap.results.aside import IN_THREAD, fit
from multitap.results.cutting import Handle
from multitap.results.select import fit_result
from multitap.selectors import Selector

ROWS = [{"id": number, "name": f"name {number} é"} for number in range(20_000)]
LARGE = msgspec.json.encode({"content": [], "structuredContent": {"rows": ROWS}})


@pytest.mark.parametrize(
    ("expression", "start"),
    [
        pytest.param(None, 0, id="cut"),
        pytest.param("rows[].name", 500, id="selected, from a row on"),
        pytest.param("sort(rows)", 0, id="explained"),
    ],
)
async def test_a_large_result_is_shaped_as_a_small_one_is(expression, start):
    selector = None if expression is None else Selector(expression)

    shaped = await fit(LARGE, selector, 10_000, Handle("x"), CapacityLimiter(1), start)

    assert len(LARGE) > IN_THREAD
    assert shaped == fit_result(LARGE, selector, 10_000, Handle("x"), start)
    assert len(shaped.shown) < 12_000
