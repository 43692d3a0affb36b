"""`multitap resources` and `multitap read`: what servers have to read."""

import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from mcp_types import ReadResourceResult, TextResourceContents

from multitap.catalog import Resource
from multitap.cli.asked import Asked
from multitap.cli.configured import configured, require
from multitap.cli.data import say_json
from multitap.cli.exits import Exit
from multitap.cli.listing import fits, listed
from multitap.cli.opening import adapted, on_demand, opened
from multitap.cli.output import advise, say_text
from multitap.cli.reaching import check_up, reach
from multitap.cli.running import run_async
from multitap.cli.saving import attachments, save_all
from multitap.cli.tables import table
from multitap.config import Loaded
from multitap.content import EmbeddedResource
from multitap.errors import UnknownName
from multitap.hub import Hub


def resources(asked: Asked, pattern: str | None, *, server: str | None, as_json: bool) -> int:
    """List those that fit."""
    found = [
        resource
        for resource in listed(asked, _all, server=server)
        if server in {None, resource.server}
        and fits(pattern, resource.address, _word(resource, "name"), _word(resource, "description"))
    ]
    if as_json:
        say_json([{"server": one.server, **_shown(one)} for one in found])
    elif found:
        rows = [(one.address, one.server, _word(one, "mimeType"), _summary(one)) for one in found]
        table(("URI", "SERVER", "TYPE", "DESCRIPTION"), rows)
    return Exit.DONE


def read(asked: Asked, uri: str, *, server: str | None, save: Path | None, as_json: bool) -> int:
    """Print what is in a resource."""
    loaded = configured(asked)
    if server is not None:
        require(loaded, server)
    result = run_async(lambda: _read(loaded, asked, uri, server))
    contents = [_content(one) for one in result.contents]
    if save is not None:
        save_all(attachments(contents), save, uri.rpartition("/")[2])
    if as_json:
        say_json(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    elif save is None:
        _print(contents)
    return Exit.DONE


def _all(hub: Hub) -> Iterator[Resource]:
    yield from hub.catalog.resources
    yield from hub.catalog.templates


async def _read(loaded: Loaded, asked: Asked, uri: str, server: str | None) -> ReadResourceResult:
    async with opened(loaded, adapted(loaded, asked, on_demand, only=server)) as hub:
        if await reach(hub, lambda: hub.catalog.find_resource(uri, server)) is None:
            if server is not None:
                check_up(hub, server)
            raise _unknown(hub, uri)
        return await hub.read(uri, server=server)


def _unknown(hub: Hub, uri: str) -> UnknownName:
    near = get_close_matches(uri, [one.address for one in _all(hub)], n=1)
    down = [server.name for server in hub.snapshot().servers if server.failure]
    hints = (
        f"did you mean {near[0]!r}?" if near else "",
        "`multitap resources` lists what there is",
        f"(not of {', '.join(down)}: down)" if down else "",
    )
    return UnknownName(f"no server has a resource {uri!r}", hint=" ".join(filter(None, hints)))


def _content(contents: Any) -> EmbeddedResource:
    if isinstance(contents, TextResourceContents):
        return EmbeddedResource(contents.uri, contents.mime_type, text=contents.text)
    return EmbeddedResource(contents.uri, contents.mime_type, encoded=contents.blob)


def _print(contents: Sequence[EmbeddedResource]) -> None:
    for content in contents:
        if content.text is not None:
            say_text(content.text)
        elif sys.stdout.isatty():
            say_text(str(content))
            advise("`--save DIR` saves it; into a pipe or file it goes as it is")
        else:
            click.echo(content.data, nl=False)


def _shown(resource: Resource) -> dict[str, Any]:
    key = "uri" if "uri" in resource.definition else "uriTemplate"
    return {**resource.definition, key: resource.address}


def _word(resource: Resource, key: str) -> str:
    value = resource.definition.get(key)
    return value if isinstance(value, str) else ""


def _summary(resource: Resource) -> str:
    words = _word(resource, "description") or _word(resource, "title") or _word(resource, "name")
    return words.strip().partition("\n")[0]
