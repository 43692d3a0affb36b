"""`multitap resources` and `multitap read`: list resources, and read one."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mcp_types import ReadResourceResult, TextResourceContents

from multitap.cli.configuration.chosen_configuration import load_configuration, require
from multitap.cli.exits import Exit
from multitap.cli.gateways.running_gateways import RunningGateway, choose_gateway
from multitap.cli.offers.offer_listing import check_server, fits, list_offers
from multitap.cli.options import CommonOptions
from multitap.cli.running import run_async
from multitap.cli.servers.status_command import status_lines_of
from multitap.cli.terminal.output import advise, say_json, say_text
from multitap.cli.terminal.saving import attachments, save_all
from multitap.cli.terminal.tables import table
from multitap.config import Loaded
from multitap.config.problems import nearest
from multitap.errors import UnknownName
from multitap.events import Snapshot
from multitap.gateway.fronts.control_messages import ResourceLine
from multitap.results import EmbeddedResource

if TYPE_CHECKING:
    from multitap.catalog.catalog import Resource
    from multitap.hub.hub import Hub


def resources(
    options: CommonOptions, pattern: str | None, *, server: str | None, as_json: bool
) -> int:
    """List the matching resources."""
    found = [
        resource
        for resource in list_offers(options, _of_hub, lambda live: live.resources(), server=server)
        if fits(pattern, resource.uri, _word(resource, "name"), _word(resource, "description"))
    ]
    if as_json:
        say_json([{"server": one.server, **one.definition} for one in found])
    elif found:
        rows = [(one.uri, one.server, _word(one, "mimeType"), _summary(one)) for one in found]
        table(("URI", "SERVER", "TYPE", "DESCRIPTION"), rows)
    return Exit.DONE


def read(
    options: CommonOptions, uri: str, *, server: str | None, save: Path | None, as_json: bool
) -> int:
    """Print the content of a resource."""
    loaded = load_configuration(options)
    live = choose_gateway(options, loaded)
    if live is not None:
        result = _read_live(live, loaded, options, uri, server)
    else:
        if server is not None:
            require(loaded, server)
        result = run_async(lambda: _read(loaded, options, uri, server))
    contents = [_content(one) for one in result.contents]
    if save is not None:
        save_all(attachments(contents), save, uri.rpartition("/")[2])
    if as_json:
        say_json(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    elif save is None:
        _print(contents)
    return Exit.DONE


def _of_hub(hub: "Hub") -> list[ResourceLine]:
    from multitap.gateway.fronts.control_actions import resource_lines  # noqa: PLC0415 - 0.5 s of imports

    return resource_lines(hub)


def _read_live(
    live: RunningGateway, loaded: Loaded, options: CommonOptions, uri: str, server: str | None
) -> ReadResourceResult:
    if server is not None:
        check_server(live, loaded, status_lines_of(live, loaded), server)
    try:
        return ReadResourceResult.model_validate_json(live.read(uri, server, options.timeout))
    except UnknownName:
        snapshot = live.state().snapshot
        raise _unknown(uri, live.resources(), snapshot) from None


async def _read(
    loaded: Loaded, options: CommonOptions, uri: str, server: str | None
) -> ReadResourceResult:
    # takes 0.5 s, not needed with a gateway
    from multitap.cli.command_hub import adapt, on_demand, open_command_hub  # noqa: PLC0415
    from multitap.cli.offers.offer_lookup import check_missing, reach  # noqa: PLC0415
    from multitap.upstream.on_behalf_of import CallContext  # noqa: PLC0415

    async with open_command_hub(loaded, adapt(loaded, options, on_demand, only=server)) as hub:

        def find() -> "Resource | None":
            return hub.catalog.find_resource(uri, server)

        def owns(name: str) -> bool:
            return name == server

        if await reach(hub, options, find, owns=owns) is None:
            check_missing(loaded, hub, owns)
            raise _unknown(uri, _of_hub(hub), hub.snapshot())
        return await hub.read(uri, server=server, context=CallContext(timeout=options.timeout))


def _unknown(uri: str, known: Iterable[ResourceLine], snapshot: Snapshot) -> UnknownName:
    near = nearest(uri, [one.uri for one in known])
    down = [server.name for server in snapshot.servers if server.failure]
    hints = (
        f"did you mean {near!r}?" if near else "",
        "`multitap resources` lists all resources",
        f"(not from {', '.join(down)}: down)" if down else "",
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
            advise("use `--save DIR`, or redirect the output to a file or pipe")
        else:
            # byte for byte, so that a picture can be piped into a file
            click.echo(content.data, nl=False)


def _word(resource: ResourceLine, key: str) -> str:
    value = resource.definition.get(key)
    return value if isinstance(value, str) else ""


def _summary(resource: ResourceLine) -> str:
    words = _word(resource, "description") or _word(resource, "title") or _word(resource, "name")
    return words.strip().partition("\n")[0]
