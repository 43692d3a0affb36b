"""A server with every feature of MCP, pinned to one era: `cells.py ERA` over stdio.

In the handshake era it asks its client in the middle of a call, in the stateless one by its answer.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from multitap.errors import ungrouped

Era = Literal["old", "new"]

ICON = types.Icon(src="data:image/png;base64,AAAA", mime_type="image/png", sizes=["16x16"])
META = {"cells.example/kept": {"as": ["it", 1, None]}}
PLACE = "https://example.invalid/sign-in"
WRONG = -32099
ASK = types.ElicitRequest(
    params=types.ElicitRequestFormParams(
        message="who are you?",
        requested_schema={
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    )
)
ROOTS = types.ListRootsRequest()
_ANSWERS: dict[type[Any], type[Any]] = {
    types.ElicitRequest: types.ElicitResult,
    types.ListRootsRequest: types.ListRootsResult,
    types.CreateMessageRequest: types.CreateMessageResult,
}


def sampling(**more: Any) -> types.CreateMessageRequest:
    said = types.SamplingMessage(role="user", content=types.TextContent(text="say it"))
    params = types.CreateMessageRequestParams(messages=[said], max_tokens=9, **more)
    return types.CreateMessageRequest(params=params)


def sign_in(elicitation_id: str | None) -> types.ElicitRequest:
    params = types.ElicitRequestURLParams(
        message="sign in", url=PLACE, elicitation_id=elicitation_id
    )
    return types.ElicitRequest(params=params)


def _tool(name: str, **more: Any) -> types.Tool:
    return types.Tool(name=name, input_schema={"type": "object"}, **more)


TOOLS = (
    types.Tool(
        name="add",
        title="Add",
        description="two numbers",
        input_schema={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
        output_schema={"type": "object", "properties": {"sum": {"type": "integer"}}},
        annotations=types.ToolAnnotations(read_only_hint=True, title="Adding"),
        icons=[ICON],
        _meta=META,
    ),
    *(
        _tool(name)
        for name in (
            "echo_meta", "traceparent", "fail", "wrong", "count", "log", "sleep", "was_cancelled",
            "touch", "ask", "ask_twice", "ask_both", "ask_url", "must_sign_in", "signed_in",
            "sample", "sample_tools", "roots", "picture",
        )
    ),
)  # fmt: skip


class _Unanswered(Exception):
    """The client has to be asked first."""

    def __init__(self, requests: dict[str, types.InputRequest], state: str | None) -> None:
        super().__init__()
        self.requests = requests
        self.state = state


class Cast:
    """The behaviour of the server, over all its sessions."""

    def __init__(self, name: str) -> None:
        self.watched = f"{name}://watched"
        self.made = f"{name}://made/"
        self.bus = InMemorySubscriptionBus()
        self.more: list[types.Tool] = []
        self.sessions: set[Any] = set()
        self.cancelled = anyio.Event()
        self.signed_in = False
        self.level = "info"
        self.roots_changed = 0

    async def list_tools(self, ctx: Any, _: Any) -> types.ListToolsResult:
        self.sessions.add(ctx.session._connection)  # whom to tell of changes
        return types.ListToolsResult(tools=[*TOOLS, *self.more])

    async def call(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        try:
            content = await getattr(self, f"_{params.name}")(ctx, params)
        except _Unanswered as asked:
            return types.InputRequiredResult(
                input_requests=asked.requests, request_state=asked.state
            )
        return content if isinstance(content, types.CallToolResult) else _text(content)

    async def _ask_for(
        self, ctx: Any, params: Any, state: str | None = None, /, **requests: Any
    ) -> list[Any]:
        """The client's answers, in the order of the questions."""
        if is_stateless(ctx):
            given = params.input_responses or {}
            if not given.keys() >= requests.keys():
                raise _Unanswered(requests, state)
            return [given[key] for key in requests]
        answers: dict[str, Any] = {}

        async def ask(key: str, request: Any) -> None:
            model = _ANSWERS[type(request)]
            if isinstance(request, types.CreateMessageRequest) and request.params.tools:
                model = types.CreateMessageResultWithTools
            related = ServerMessageMetadata(related_request_id=ctx.request_id)
            answers[key] = await ctx.session.send_request(request, model, metadata=related)

        with ungrouped():
            async with anyio.create_task_group() as tasks:
                for key, request in requests.items():
                    tasks.start_soon(ask, key, request)
        return [answers[key] for key in requests]

    async def _add(self, _: Any, params: Any) -> types.CallToolResult:
        total = params.arguments["a"] + params.arguments["b"]
        return types.CallToolResult(
            content=[types.TextContent(text=str(total), annotations=types.Annotations(priority=1))],
            structured_content={"sum": total},
            _meta=META,
        )

    async def _traceparent(self, ctx: Any, _: Any) -> str:
        return str((ctx.meta or {}).get("traceparent", ""))

    async def _echo_meta(self, ctx: Any, _: Any) -> str:
        return str(sorted(key for key in ctx.meta or {} if key.startswith("cells.")))

    async def _fail(self, *_: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text="it failed")], is_error=True)

    async def _wrong(self, *_: Any) -> str:
        raise MCPError(WRONG, "a protocol error", {"why": "asked for"})

    async def _picture(self, *_: Any) -> types.CallToolResult:
        image = types.ImageContent(data="AAAA", mime_type="image/png")
        link = types.ResourceLink(name="watched", uri=self.watched)
        return types.CallToolResult(content=[image, link])

    async def _count(self, ctx: Any, _: Any) -> str:
        for number in (1, 2, 3):
            await ctx.session.report_progress(number, 3, f"at {number}")
        return "counted"

    async def _log(self, ctx: Any, params: Any) -> str:
        for level in ("debug", "info", "error"):
            if is_stateless(ctx) or LEVELS.index(level) >= LEVELS.index(self.level):
                said = (params.arguments or {}).get("text", "said")
                await ctx.session.send_log_message(
                    level, f"{said} at {level}", "cells", related_request_id=ctx.request_id
                )
        return "logged"

    async def _sleep(self, ctx: Any, _: Any) -> str:
        self.cancelled = anyio.Event()
        try:
            await ctx.session.report_progress(1, None, "asleep")
            await anyio.sleep(30)  # until it is cancelled
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        return "slept"

    async def _was_cancelled(self, *_: Any) -> str:
        with anyio.move_on_after(5):
            await self.cancelled.wait()
        return str(self.cancelled.is_set())

    async def _touch(self, _: Any, params: Any) -> str:
        """Change one resource, and the list of tools if told to."""
        events: list[Any] = [ResourceUpdated(uri=self.watched)]
        if name := (params.arguments or {}).get("tool"):
            self.more.append(_tool(name))
            events.append(ToolsListChanged())
        for event in events:
            await self.bus.publish(event)
        for session in tuple(self.sessions):
            if session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                await session.send_resource_updated(self.watched)
                if name:
                    await session.send_tool_list_changed()
        return "touched"

    async def _ask(self, ctx: Any, params: Any) -> str:
        (answer,) = await self._ask_for(ctx, params, who=ASK)
        return f"{answer.action} {answer.content}"

    async def _ask_twice(self, ctx: Any, params: Any) -> str:
        if not is_stateless(ctx):
            (first,) = await self._ask_for(ctx, params, first=ASK)
            (second,) = await self._ask_for(ctx, params, second=ASK)
            return f"{first.content} {second.content}"
        if params.request_state is None:
            (first,) = await self._ask_for(ctx, params, None, first=ASK)
            raise _Unanswered({"second": ASK}, first.content["name"])
        (second,) = await self._ask_for(ctx, params, params.request_state, second=ASK)
        return f"{{'name': {params.request_state!r}}} {second.content}"

    async def _ask_both(self, ctx: Any, params: Any) -> str:
        answer, roots = await self._ask_for(ctx, params, who=ASK, where=ROOTS)
        return f"{answer.content} {[str(root.uri) for root in roots.roots]}"

    async def _ask_url(self, ctx: Any, params: Any) -> str:
        request = sign_in(None if is_stateless(ctx) else "id-1")
        (answer,) = await self._ask_for(ctx, params, at=request)
        if not is_stateless(ctx):
            await ctx.session.send_elicit_complete("id-1")
        return answer.action

    async def _must_sign_in(self, ctx: Any, params: Any) -> str:
        """Refuse until a URL was visited; the stateless era has a question for that."""
        if is_stateless(ctx):
            await self._ask_for(ctx, params, at=sign_in(None))
        elif not self.signed_in:
            data = types.ElicitationRequiredErrorData(elicitations=[sign_in("id-2").params])
            raise MCPError(
                types.URL_ELICITATION_REQUIRED,
                "sign in first",
                data.model_dump(by_alias=True, mode="json", exclude_none=True),
            )
        self.signed_in = False
        return "signed in"

    async def _signed_in(self, *_: Any) -> str:
        self.signed_in = True
        return "noted"

    async def _sample(self, ctx: Any, params: Any) -> str:
        (answer,) = await self._ask_for(ctx, params, said=sampling())
        return f"{answer.model}: {answer.content.text}"

    async def _sample_tools(self, ctx: Any, params: Any) -> str:
        request = sampling(tools=[TOOLS[0]], tool_choice=types.ToolChoice(mode="required"))
        (answer,) = await self._ask_for(ctx, params, said=request)
        content = answer.content if isinstance(answer.content, Sequence) else [answer.content]
        return f"{content[0].name} {content[0].input}"

    async def _roots(self, ctx: Any, params: Any) -> str:
        if (params.arguments or {}).get("beside"):  # over HTTP, not on the stream of the call
            answer = await ctx.session.send_request(ROOTS, types.ListRootsResult)
        else:
            (answer,) = await self._ask_for(ctx, params, where=ROOTS)
        return str([str(root.uri) for root in answer.roots])

    async def list_resources(self, *_: Any) -> types.ListResourcesResult:
        watched = types.Resource(
            name="watched", uri=self.watched, mime_type="text/plain", icons=[ICON], _meta=META
        )
        return types.ListResourcesResult(resources=[watched])

    async def list_templates(self, *_: Any) -> types.ListResourceTemplatesResult:
        made = types.ResourceTemplate(name="made", uri_template=f"{self.made}{{name}}")
        return types.ListResourceTemplatesResult(resource_templates=[made])

    async def read(self, ctx: Any, params: types.ReadResourceRequestParams) -> Any:
        uri, text = str(params.uri), f"it is {params.uri}"
        if uri.endswith("/asked"):
            try:
                (answer,) = await self._ask_for(ctx, params, who=ASK)
            except _Unanswered as asked:
                return types.InputRequiredResult(input_requests=asked.requests)
            text = str(answer.content)
        elif uri not in {self.watched, f"{self.made}thing"}:
            code = -32602 if is_stateless(ctx) else -32002
            raise MCPError(code, "no such resource", {"uri": uri})
        contents = [types.TextResourceContents(uri=uri, text=text, mime_type="text/plain")]
        return types.ReadResourceResult(contents=contents, _meta=META)

    async def list_prompts(self, *_: Any) -> types.ListPromptsResult:
        argument = types.PromptArgument(name="name", required=True)
        greet = types.Prompt(name="greet", arguments=[argument], icons=[ICON], _meta=META)
        return types.ListPromptsResult(prompts=[greet, types.Prompt(name="asked")])

    async def prompt(self, ctx: Any, params: types.GetPromptRequestParams) -> Any:
        text = f"hello {(params.arguments or {}).get('name')}"
        if params.name == "asked":
            try:
                (answer,) = await self._ask_for(ctx, params, who=ASK)
            except _Unanswered as asked:
                return types.InputRequiredResult(input_requests=asked.requests)
            text = str(answer.content)
        said = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(messages=[said], description="a greeting")

    async def complete(self, _: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
        known = (params.context.arguments if params.context else None) or {}
        values = [f"{params.argument.value}{end}" for end in ("one", "two", *known.values())]
        return types.CompleteResult(completion=types.Completion(values=values, has_more=False))

    async def set_level(self, _: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        self.level = params.level
        return types.EmptyResult()

    async def subscribed(self, ctx: Any, _: Any) -> types.EmptyResult:
        self.sessions.add(ctx.session._connection)  # whom to tell of changes
        return types.EmptyResult()


LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def is_stateless(ctx: Any) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def _text(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=words)])


class _Told(Server[Any]):
    """Says that it tells of changes; the SDK's HTTP manager forgets to."""

    def create_initialization_options(self, *_: Any, **__: Any) -> Any:
        everything = NotificationOptions(
            prompts_changed=True, resources_changed=True, tools_changed=True
        )
        return super().create_initialization_options(everything)


def build(era: Era, name: str = "") -> Server[Any]:
    """The server, which refuses to speak any era but its own."""
    name = name or era
    cast = Cast(name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        server = _Told(
            name,
            version="1",
            instructions=f"about {name}",
            on_list_tools=cast.list_tools,
            on_call_tool=cast.call,
            on_list_resources=cast.list_resources,
            on_list_resource_templates=cast.list_templates,
            on_read_resource=cast.read,
            on_list_prompts=cast.list_prompts,
            on_get_prompt=cast.prompt,
            on_completion=cast.complete,
            on_set_logging_level=cast.set_level,
            on_subscribe_resource=cast.subscribed,
            on_unsubscribe_resource=cast.subscribed,
            on_subscriptions_listen=ListenHandler(cast.bus),
        )

    async def only_its_era(ctx: Any, call_next: Any) -> Any:
        if ctx.request_id is not None and is_stateless(ctx) is not (era == "new"):
            raise MCPError(types.METHOD_NOT_FOUND, f"Method not found: {ctx.method}")
        return await call_next(ctx)

    server.middleware.insert(0, only_its_era)
    return server


async def _main(era: Era) -> None:
    server = build(era)
    options = server.create_initialization_options()
    async with stdio_server() as (read, write):
        if era == "new":
            await server.run(read, write, options)
        else:
            await serve_loop(server, read, write, lifespan_state={}, init_options=options)


if __name__ == "__main__":
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    anyio.run(_main, sys.argv[1])
