"""`multitap resources` and `multitap read`: what servers have to read."""

import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mcp_types import ReadResourceResult, TextResourceContents

from multitap.cli.asked import Asked
from multitap.cli.configured import configured, require
from multitap.cli.data import say_json
from multitap.cli.exits import Exit
from multitap.cli.listing import check_server, fits, listed
from multitap.cli.live import Live, chosen
from multitap.cli.output import advise, say_text
from multitap.cli.running import run_async
from multitap.cli.saving import attachments, save_all
from multitap.cli.status import stories_of
from multitap.cli.tables import table
from multitap.config import Loaded
from multitap.content import EmbeddedResource
from multitap.errors import UnknownName
from multitap.events import Snapshot
from multitap.serve.control_words import ResourceLine

if TYPE_CHECKING:
    from multitap.catalog import Resource
    from multitap.hub import Hub


def resources(asked: Asked, pattern: str | None, *, server: str | None, as_json: bool) -> int:
    """List those that fit."""
    found = [
        resource
        for resource in listed(asked, _of_hub, lambda live: live.resources(), server=server)
        if fits(pattern, resource.uri, _word(resource, "name"), _word(resource, "description"))
    ]
    if as_json:
        say_json([{"server": one.server, **one.definition} for one in found])
    elif found:
        rows = [(one.uri, one.server, _word(one, "mimeType"), _summary(one)) for one in found]
        table(("URI", "SERVER", "TYPE", "DESCRIPTION"), rows)
    return Exit.DONE


def read(asked: Asked, uri: str, *, server: str | None, save: Path | None, as_json: bool) -> int:
    """Print what is in a resource."""
    loaded = configured(asked)
    live = chosen(asked, loaded)
    if live is not None:
        result = _read_live(live, loaded, asked, uri, server)
    else:
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


def _of_hub(hub: "Hub") -> list[ResourceLine]:
    from multitap.serve.control_errands import resource_lines  # noqa: PLC0415 - 0.5 s of imports

    return resource_lines(hub)


def _read_live(
    live: Live, loaded: Loaded, asked: Asked, uri: str, server: str | None
) -> ReadResourceResult:
    if server is not None:
        check_server(live, loaded, stories_of(live, loaded), server)
    try:
        return ReadResourceResult.model_validate_json(live.read(uri, server, asked.timeout))
    except UnknownName:
        snapshot = live.picture().snapshot
        raise _unknown(uri, live.resources(), snapshot) from None


async def _read(loaded: Loaded, asked: Asked, uri: str, server: str | None) -> ReadResourceResult:
    # 0.5 s that a gateway spares
    from multitap.cli.opening import adapted, on_demand, opened  # noqa: PLC0415
    from multitap.cli.reaching import check_missing, reach  # noqa: PLC0415
    from multitap.upstream.caller import CallContext  # noqa: PLC0415

    async with opened(loaded, adapted(loaded, asked, on_demand, only=server)) as hub:

        def find() -> "Resource | None":
            return hub.catalog.find_resource(uri, server)

        def owns(name: str) -> bool:
            return name == server

        if await reach(hub, asked, find, owns=owns) is None:
            check_missing(loaded, hub, owns)
            raise _unknown(uri, _of_hub(hub), hub.snapshot())
        return await hub.read(uri, server=server, context=CallContext(timeout=asked.timeout))


def _unknown(uri: str, known: Iterable[ResourceLine], snapshot: Snapshot) -> UnknownName:
    near = get_close_matches(uri, [one.uri for one in known], n=1)
    down = [server.name for server in snapshot.servers if server.failure]
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


def _word(resource: ResourceLine, key: str) -> str:
    value = resource.definition.get(key)
    return value if isinstance(value, str) else ""


def _summary(resource: ResourceLine) -> str:
    words = _word(resource, "description") or _word(resource, "title") or _word(resource, "name")
    return words.strip().partition("\n")[0]
