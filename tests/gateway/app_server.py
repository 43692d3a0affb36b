"""A server with a page: `app_server.py ERA NAME [PORT]`; others have the same addresses."""

import sys

from plain_server import UI, Plain, serve, tool

PAGE = "ui://widget/main.html"
TYPE = "text/html;profile=mcp-app"


class App(Plain):
    def __init__(self, era, name):
        super().__init__(era)
        self.name = name

    def introduction(self):
        said = super().introduction()
        said["capabilities"]["extensions"] = {UI: {}}
        return said

    def tools(self, able):
        refers = {"ui": {"resourceUri": PAGE}, "ui/resourceUri": PAGE}
        if UI not in able.get("extensions", {}):
            return [tool("as_text"), tool("show_only_model")]
        return [
            tool("show", _meta=refers),
            tool("refresh", description="refresh the page", _meta={"ui": {"visibility": ["app"]}}),
            tool("show_only_model", _meta={"ui": {"visibility": ["model"]}}),
            tool("nobody", _meta={"ui": {"visibility": []}}),
        ]

    async def result(self, method, params, able, connection, send):
        match method, params.get("name") or params.get("uri"):
            case "resources/list", _:
                return self.listed(resources=[])  # pages need not be listed
            case "resources/read", uri:
                if not uri.startswith("ui://"):
                    return None
                what = "page" if uri == PAGE else "part"
                meta = {"ui": {"csp": {"connectDomains": ["https://example.com"]}}}
                content = {"uri": uri, "mimeType": TYPE, "text": f"{what} of {self.name}"}
                return self.listed(contents=[{**content, "_meta": meta}])
            case "tools/call", "show":
                link = {"type": "resource_link", "uri": PAGE, "name": "page"}
                refers = {"ui": {"resourceUri": PAGE}, "ui/resourceUri": PAGE}
                return {"content": [link], "_meta": refers}
            case "tools/call", _:
                return {"content": [{"type": "text", "text": self.name}]}
        return await super().result(method, params, able, connection, send)


if __name__ == "__main__":
    serve(App(*sys.argv[1:3]), *sys.argv[3:])
