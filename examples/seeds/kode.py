"""The servers of `.kode.json`, followed while the file changes."""

import anyio

from multitap.config import Surroundings, kode
from multitap.hub.reload import Reloader, open_configured
from multitap.trust.projects.trusted_projects import load_trusted


async def main() -> None:
    files = Reloader(lambda: load_trusted(kode(Surroundings.here())))
    async with open_configured(files) as hub:
        await hub.settled()
        result = await hub.call("calculator:add", {"a": 2, "b": 40})
        print(result.text)
        print((await files.reload(hub)).plan)  # what saving the file does by itself


anyio.run(main)
