"""A server whose lists have lifetimes and groups: `list_server.py ERA TTL SCOPE`, over pipes.

Its tools become more each time they are listed, and it does not tell anybody.
"""

import asyncio
import sys

from plain_server import META, Plain, on_pipes, tool

GROUPS = f"{META}groups"


class Listed(Plain):
    def __init__(self, era, ttl, scope):
        super().__init__(era)
        self.ttl = int(ttl)
        self.scope = scope
        self.times = 0

    def introduction(self):
        said = super().introduction()
        said["capabilities"] = {
            "tools": {},
            "prompts": {},
            "resources": {},
            "experimental": {f"{META}grouping": {}},
        }
        return said

    def listed(self, **items):
        fresh = {"ttlMs": self.ttl, "cacheScope": self.scope}
        return items if self.era == "old" else {**items, **fresh}

    def tools(self, able):
        self.times += 1
        return [
            tool("mail", _meta={GROUPS: ["post"]}),
            *(tool(f"t{number:03}") for number in range(self.times)),
        ]

    async def result(self, method, params, able, connection, send):
        match method:
            case "groups/list":
                outer = {"name": "office", "title": "Office"}
                return {"groups": [outer, {"name": "post", "_meta": {GROUPS: ["office"]}}]}
            case "resources/list":
                entries = [{"uri": f"x://{n}", "name": f"x{n}"} for n in range(5)]
                return self.listed(resources=entries)
            case "resources/read":
                return self.listed(contents=[{"uri": params["uri"], "text": "x"}])
        return await super().result(method, params, able, connection, send)


if __name__ == "__main__":
    asyncio.run(on_pipes(Listed(*sys.argv[1:])))
