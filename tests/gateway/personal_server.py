"""A program that offers everything, and says in all of it whose key it has.

`personal_server.py ERA LABEL` over pipes has one key for all, in its environment; `app` over HTTP
has a key, or what says whose it is, with each request.
"""

import asyncio
import os
import sys

from aiohttp import web

if __name__ == "__main__":
    from plain_server import Plain, note, on_pipes, tool, web_app
else:
    from tests.gateway.plain_server import Plain, note, tool, web_app

ONLY_READS = {"readOnlyHint": True, "idempotentHint": True}


class Personal(Plain):
    """One person's server; `label` tells the addresses of several apart."""

    def __init__(self, era, label, key):
        super().__init__(era)
        self.label = label
        self.key = key
        # a key is redacted from what its owner sees in questions and logs
        self.name = key.rpartition("-")[2]

    def tools(self, able):
        names = ("whoami", "touch", "ask", f"only_for_{self.name}")
        return [tool("key", annotations=ONLY_READS), *map(tool, names)]

    async def result(self, method, params, able, connection, send):
        key, uri = self.key, params.get("uri", "")
        match method:
            case "resources/list":
                return self.listed(resources=[{"uri": self.inbox, "name": "inbox"}])
            case "resources/templates/list":
                template = {"uriTemplate": f"{self.label}://notes/{{topic}}", "name": "notes"}
                return self.listed(resourceTemplates=[template])
            case "resources/read":
                text = f"notes of {key} on {uri.rpartition('/')[2]}"
                text = f"mail of {key}" if uri == self.inbox else text
                return self.listed(contents=[{"uri": uri, "text": text}])
            case "prompts/list":
                arguments = [{"name": "topic"}]
                return self.listed(prompts=[{"name": "greeting", "arguments": arguments}])
            case "prompts/get":
                content = {"type": "text", "text": f"Greet {key}"}
                return {"messages": [{"role": "user", "content": content}]}
            case "completion/complete":
                return {"completion": {"values": [f"{key}-{params['argument']['value']}"]}}
            case "tools/call" if params["name"] == "ask" and self.era == "new":
                return self.ask_between(params)
            case "tools/call":
                text = await self.call(
                    params["name"], params.get("arguments", {}), connection, send
                )
                return {"content": [{"type": "text", "text": text}]}
        return await super().result(method, params, able, connection, send)

    @property
    def inbox(self):
        return f"{self.label}://inbox"

    async def call(self, name, arguments, connection, send):
        match name:
            case "whoami":
                said = arguments.get("note", "")
                print(f"a call of {self.name} {said}", file=sys.stderr, flush=True)
                await send(note("notifications/message", level="error", data=f"log of {self.name}"))
                return f"{self.key} {os.getpid()} {said}"
            case "touch":
                await self.tell_all(
                    note("notifications/resources/updated", uri=self.inbox, _meta={"of": self.name})
                )
                return self.key
            case "ask":
                number = f"ask-{next(self.numbers)}"
                connection.answers[number] = answer = asyncio.get_running_loop().create_future()
                question = {"jsonrpc": "2.0", "id": number, **self.question}
                await send(question)
                return f"{self.key} {(await answer)['content']['name']}"
        return self.key

    @property
    def question(self):
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        params = {"mode": "form", "message": f"who is {self.name}?", "requestedSchema": schema}
        return {"method": "elicitation/create", "params": params}

    def ask_between(self, params):
        if "inputResponses" not in params:
            return {
                "resultType": "input_required",
                "inputRequests": {"who": self.question},
                "requestState": f"state of {self.key}",
            }
        if params["requestState"] != f"state of {self.key}":
            raise ValueError(f"a state of another: {params['requestState']}")
        name = params["inputResponses"]["who"]["content"]["name"]
        return {"content": [{"type": "text", "text": f"{self.key} {name}"}]}


def key_in(request):
    key = request.headers.get("x-key")
    if key is None:
        raise web.HTTPForbidden
    return key


def app(era, label, key_of=key_in):
    """The same over HTTP, for everybody: each request has the key of its person."""
    people = {}

    def choose(request):
        key = key_of(request)
        return people.setdefault(key, Personal(era, label, key))

    return web_app(choose)


if __name__ == "__main__":
    era, label = sys.argv[1:] or ("old", "personal")
    asyncio.run(on_pipes(Personal(era, label, os.environ.get("PERSONAL_KEY", "nobody"))))
