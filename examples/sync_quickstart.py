"""One bundled server, one call, and nothing to await."""

import sys

from multitap import Settings, StdioServer, SyncHub

calculator = StdioServer(command=sys.executable, args=["-m", "multitap.demo.servers.calculator"])

with SyncHub(Settings(servers={"calculator": calculator})) as hub:
    hub.settled()
    for tool in hub.tools:
        print(tool.name, "-", tool.description)

    result = hub.call("calculator_add", {"a": 2, "b": 40})
    print(result.text)
