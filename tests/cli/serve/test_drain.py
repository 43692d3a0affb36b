"""A gateway that stops says so, finishes its calls, and then ends."""

import os
import signal

from tests.attacks.served import serving
from tests.gateway.hostile.raw import dial, http, stateless
from tests.waiting import PATIENCE, until_told


async def test_a_call_in_progress_ends_before_a_gateway_that_drains(tmp_path):
    other = tmp_path / "more.toml"
    other.write_text("[serve]\ndrain = 60\n")
    with serving(tmp_path, "--config", str(other)) as (port, process):
        async with dial(port) as line, dial(port) as probe:
            assert (await line.asks(stateless(1, "tools/list"))).status == 200
            # longer than what a gateway that does not drain would give it
            sleep = {"name": "calculator_sleep", "arguments": {"seconds": 6}}
            await line.send(stateless(2, "tools/call", **sleep))

            async def is_working():
                metrics = (await probe.asks(http("GET", "/metrics"))).body
                return b'calls_in_flight{server="calculator"} 1' in metrics or None

            await until_told(is_working)
            os.kill(process.pid, signal.SIGTERM)

            async def is_leaving():
                answer = await probe.asks(http("GET", "/ready"))
                return answer if answer.status == 503 else None

            await until_told(is_leaving)
            listed = await probe.asks(stateless(3, "tools/list"))
            answer = await line.response()
        process.communicate(timeout=PATIENCE)

    assert listed.status == 200
    assert "isError" not in answer.message["result"]
    assert process.returncode == 0
