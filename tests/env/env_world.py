"""A small world for tests; run as a program, it is served over the pipes."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio

from multitap.config import StdioServer
from multitap.env.protocol import (
    EnvAgent,
    EnvCapabilities,
    EnvDescription,
    EnvProfile,
    LlmReply,
    LogEntry,
    LogPage,
    PromptMessage,
    PromptText,
    ToolDescription,
    ToolOutcome,
)
from multitap.env.server import EnvMCPServer
from multitap.errors import UnknownName

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
REVIEW = EnvProfile(id="review", display_name="Review", agents=("critic",))
CRITIC = EnvAgent(id="critic", display_name="Critic", model="small", tools=("shout",))
SHOUT = ToolDescription(
    name="shout",
    description="In capitals.",
    input_schema={"type": "object", "properties": {"text": {"type": "string", "default": None}}},
)
IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


class Workshop:
    """Knows one of each kind; the tool `hang` never answers, and `break` breaks."""

    def __init__(self):
        self.hanging = anyio.Event()
        self.given_up = anyio.Event()

    async def describe(self):
        return EnvDescription(
            id="workshop",
            display_name="Workshop",
            version="2.0.0",
            capabilities=EnvCapabilities(prompts=True),
            profiles=(REVIEW,),
        )

    async def list_profiles(self):
        return [REVIEW]

    async def get_profile(self, profile, /):
        if profile != REVIEW.id:
            raise UnknownName(f"no profile {profile!r}", hint="list_profiles has them all")
        return REVIEW

    async def list_agents(self):
        return [CRITIC]

    async def get_agent(self, agent, /):
        if agent != CRITIC.id:
            raise UnknownName(f"no agent {agent!r}")
        return CRITIC

    async def query_logs(self, query, /):
        text = f"{query.level} {query.limit} {query.since}"
        entry = LogEntry(at=NOON, level="info", kind="call", server="git", text=text)
        return LogPage(entries=(entry,), cursor="more")

    async def list_tools(self, agent=None):
        return [SHOUT] if agent in (None, CRITIC.id) else []

    async def execute_tool(self, name, arguments, agent=None):
        if name == "hang":
            self.hanging.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.given_up.set()
        if name == "break":
            raise ZeroDivisionError("the password is hunter2")
        if name == "print":
            print("on standard output")
            os.write(1, b"on descriptor 1\n")
        if name not in ("shout", "print"):
            raise UnknownName(f"no tool named {name!r}")
        if "text" not in arguments:
            return ToolOutcome(success=False, error="nothing to shout")
        return ToolOutcome(success=True, output=arguments["text"].upper(), content=(IMAGE,))

    async def get_prompt(self, name, arguments):
        if name != "greet":
            raise UnknownName(f"no prompt named {name!r}")
        return PromptText(name=name, messages=(PromptMessage(text=f"Hello {arguments['who']}"),))

    async def invoke_llm(self, request, /):
        return LlmReply(text=request.messages[-1].content[::-1], model=request.model or "mirror")


def program(**limits):
    """The configuration of a process that serves a workshop with everything turned on."""
    return StdioServer(command=sys.executable, args=(str(Path(__file__)),), **limits)


async def main():
    server = EnvMCPServer(Workshop(), execute_tool=True, invoke_llm=True)
    async with server.serve_stdio() as front:
        with anyio.open_signal_receiver(15) as signals, anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_at, signals, scope)
                await front.closed.wait()
                tasks.cancel_scope.cancel()
    print("served", flush=True)


async def _cancel_at(signals, scope):
    async for _ in signals:
        scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
