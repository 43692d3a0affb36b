"""Scripts as models write them run as they are."""

import json

import msgspec

from multitap.code.messages import (
    CallAnswer,
    CallAnswers,
    Run,
    ScriptCalls,
    ScriptDone,
    ScriptLimits,
)
from multitap.code.pool import ScriptPool
from tests.code.corpus import CASES, answer

NAMES = [
    *("shop_list_orders", "shop_get_order", "shop_cancel_order", "notes_read_note", "clock_now"),
    *("call_tool", "search_tools"),
]
LEAST = 0.95


def tool_result(call):
    """What a gateway answers: the same tool by a function, by `call_tool`, or by a position."""
    name, arguments = call.name, json.loads(call.arguments)
    values = arguments.pop("*", None)
    if name == "search_tools":
        return CallAnswer(
            call.id, msgspec.json.encode({"structuredContent": {"result": "shop_get_order"}})
        )
    if name == "call_tool":
        name, arguments = values[0], values[1]
    elif values:
        arguments["id"] = values[0]
    try:
        value = answer(name.replace("read_note", "read-note"), arguments)
    except ValueError as exc:
        return CallAnswer(call.id, error=str(exc))
    text = value if isinstance(value, str) else json.dumps(value, indent=1)
    return CallAnswer(call.id, json.dumps({"content": [{"type": "text", "text": text}]}).encode())


async def run(process, code):
    """The result or output of a script, or the report of its failure."""
    order = Run(code=code, names=NAMES, servers=["shop", "clock"], limits=ScriptLimits())
    report = await process.ask(order)
    while isinstance(report, ScriptCalls):
        report = await process.ask(CallAnswers([tool_result(call) for call in report.calls]))
    if not isinstance(report, ScriptDone):
        return report
    value = json.loads(report.result)
    if report.printed:
        return report.printed + ("" if value is None else json.dumps(value))
    return value


async def test_nearly_all_scripts_run_unchanged():
    pool, failed = ScriptPool(), {}
    try:
        async with pool.process() as process:
            for name, code, expected in CASES:
                outcome = await run(process, code)
                if outcome != expected:
                    failed[name] = outcome
            process.is_clean = True
    finally:
        await pool.close()

    assert len(CASES) == 200
    assert 1 - len(failed) / len(CASES) >= LEAST, failed
    print(f"{len(CASES) - len(failed)} of {len(CASES)}; failed: {failed}")
