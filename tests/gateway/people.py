"""People with tokens at one gateway, their browsers, and servers that say who calls."""

import re
import sys
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

import aiohttp
import mcp_types as types

from multitap.config import StdioServer
from multitap.gateway.fronts.accounts import open_accounts
from multitap.gateway.fronts.tokens import Token
from multitap.principal import FILE_ISSUER, Person
from tests.gateway.talking import Talker, gate

NAMES = ("alice", "bob", "carol")
PROGRAM = Path(__file__).with_name("personal_server.py")


def token_of(name):
    return f"token-of-{name}-with-length"


def tokens():
    return tuple(Token(token_of(name).encode(), name) for name in NAMES)


def person(name):
    return Person(FILE_ISSUER, name)


def program(speaks="old", label="personal", **fields):
    """A program that has a person's key, and says so in everything it offers."""
    return StdioServer(
        command=sys.executable,
        args=(str(PROGRAM), speaks, label),
        env={"PERSONAL_KEY": "${auth:key}"},
        credentials="per-user",
        **fields,
    )


@asynccontextmanager
async def team(settings, **options):
    """A gateway with pages, for people with tokens."""
    async with gate(settings, tokens=tokens(), **options) as gateway:
        open_accounts(gateway.front, gateway.url.removesuffix("/mcp"))
        yield gateway


class Browser:
    """A browser of one person; leaving the block closes it."""

    def __init__(self, gateway, name=None):
        self.base = gateway.url.removesuffix("/mcp")
        self.name = name

    async def __aenter__(self):
        jar = aiohttp.CookieJar(unsafe=True)  # loopback has no name
        self.session = aiohttp.ClientSession(cookie_jar=jar)
        if self.name is not None:
            await self.sign_in(self.name)
        return self

    async def __aexit__(self, *exc):
        await self.session.close()

    async def open(self, address):
        """The status and text of a page, as far as redirects lead."""
        url = address if "://" in address else f"{self.base}{address}"
        async with self.session.get(url) as response:
            return response.status, unescape(await response.text())

    async def post(self, path, form, **headers):
        headers = {"Origin": self.base, **headers}
        async with self.session.post(f"{self.base}{path}", data=form, headers=headers) as response:
            return response.status, unescape(await response.text())

    async def sign_in(self, name, then="/accounts"):
        return await self.post("/accounts/sign-in", {"token": token_of(name), "then": then})

    async def csrf(self):
        _, text = await self.open("/accounts")
        found = re.search(r'name="csrf" value="([^"]+)"', text)
        assert found, text
        return found[1]

    async def connect(self, link):
        """Open a link, agree, and log in where that leads; the text of the last page."""
        status, text = await self.open(link)
        if status != 200:
            return text
        form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text))
        _, text = await self.post("/accounts/connect", form)
        address = re.search(r'content="0;url=([^"]+)"', text)[1]
        return (await self.open(address))[1]

    async def give_key(self, server, value, name="key"):
        form = {"csrf": await self.csrf(), "server": server, f"key-{name}": value}
        return await self.post("/accounts/keys", form)


class Client(Talker):
    """A client of one person, who opens what they are asked to open with their own browser."""

    def __init__(self, era, gateway, name, *, browser=None, **options):
        super().__init__(era, gateway.url, token=token_of(name), **options)
        self.browser = browser
        self.tasks = gateway.gateway.tasks

    async def _elicit(self, _, params):
        self.asked.append(params)
        if self.browser is None:
            return types.ElicitResult(action="decline")
        self.tasks.start_soon(self.browser, params.url)
        return types.ElicitResult(action="accept")


def text_of(result):
    return result.content[0].text
