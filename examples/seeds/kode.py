"""The servers of `.kode.json`, followed while the file changes."""

import anyio

from multitap import open_hub
from multitap.config import Surroundings, kode
from multitap.hub.reload import Reloader
from multitap.trust.projects import load_trusted


async def main() -> None:
    files = Reloader(lambda: load_trusted(kode(Surroundings.here())))
    async with open_hub(files) as hub:
        await hub.settled()
        result = await hub.call("calculator:add", {"a": 2, "b": 40})
        print(result.text)
        print((await files.reload(hub)).plan)  # what saving the file does by itself


anyio.run(main)
