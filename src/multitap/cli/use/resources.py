"""`multitap resources` and `multitap read`: list resources, and read one."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from multitap.cli.attachments import attachments, save_all
from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration, require
from multitap.cli.options import (
    FILE,
    CommonOptions,
    ServerCommand,
    gateway_or_server_options,
    json_option,
)
from multitap.cli.target import Target
from multitap.cli.terminal import Exit, advise, say_json, say_text, table
from multitap.cli.use.listing import check_matches, check_server, fits, list_offers
from multitap.cli.use.status import server_lines
from multitap.config.problems import nearest
from multitap.control.messages import Delivery, GatewayState, ResourceLine
from multitap.control.methods import Control
from multitap.errors import UnknownName
from multitap.results import EmbeddedResource


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only those of this server")
@gateway_or_server_options
@json_option
def resources(
    options: CommonOptions, pattern: str | None, *, server: str | None, as_json: bool
) -> int:
    """List the resources and resource templates"""
    offered = list_offers(options, lambda control: control.resources(), server=server)
    listed = [
        resource
        for resource in offered
        if fits(pattern, resource.uri, _word(resource, "name"), _word(resource, "description"))
    ]
    if as_json:
        say_json([{"server": resource.server, **resource.definition} for resource in listed])
    elif listed:
        rows = [
            (resource.uri, resource.server, _word(resource, "mimeType"), _summary(resource))
            for resource in listed
        ]
        table(("URI", "SERVER", "TYPE", "DESCRIPTION"), rows)
    return check_matches(pattern, offered, listed)


@click.command(cls=ServerCommand)
@click.argument("uri")
@click.option(
    "-s", "--server", shell_complete=complete_server, help="Which server, if several have it"
)
@click.option("--save", type=FILE, metavar="DIR", help="Save it in DIR")
@gateway_or_server_options
@json_option
def read(
    options: CommonOptions, uri: str, *, server: str | None, save: Path | None, as_json: bool
) -> int:
    """Print a resource"""
    loaded = load_configuration(options)
    target = Target(options, loaded)

    async def read_it(control: Control) -> Delivery:
        if server is not None and target.gateway is not None:
            check_server(target, server_lines(target, await control.state()), server)
        try:
            return await control.read(uri, server, options.timeout)
        except UnknownName:
            raise _unknown(uri, await control.resources(), await control.state()) from None

    if server is not None and target.gateway is None:
        require(loaded, server)
    result = msgspec.json.decode(target.use(read_it, server=server).result)
    contents = [_content(content) for content in result["contents"]]
    if save is not None:
        save_all(attachments(contents), save, uri.rpartition("/")[2])
    if as_json:
        say_json(result)
    elif save is None:
        _print(contents)
    return Exit.DONE


def _unknown(uri: str, resources: Iterable[ResourceLine], state: GatewayState) -> UnknownName:
    near = nearest(uri, [resource.uri for resource in resources])
    down = [server.name for server in state.snapshot.servers if server.failure]
    hints = (
        f"did you mean {near!r}?" if near else "",
        "`multitap resources` lists all resources",
        f"(not from {', '.join(down)}: down)" if down else "",
    )
    return UnknownName(f"no server has a resource {uri!r}", hint=" ".join(filter(None, hints)))


def _content(content: Mapping[str, Any]) -> EmbeddedResource:
    text, encoded = content.get("text"), content.get("blob")
    return EmbeddedResource(content["uri"], content.get("mimeType"), text=text, encoded=encoded)


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
    text = _word(resource, "description") or _word(resource, "title") or _word(resource, "name")
    return text.strip().partition("\n")[0]
