"""`multitap prompts` and `multitap prompt`: list prompts, and fill one in."""

from collections.abc import Iterator
from typing import Any

import click
import msgspec
from msgspec import Raw

from multitap.catalog.schemas.schema import is_list, is_object
from multitap.catalog.schemas.typed_arguments import ArgumentWord, bad_argument, texts, words
from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration
from multitap.cli.options import (
    CommonOptions,
    ServerCommand,
    gateway_or_server_options,
    json_option,
)
from multitap.cli.target import Target
from multitap.cli.terminal import Exit, say_json, say_text, table
from multitap.cli.use.listing import check_matches, fits, list_offers
from multitap.control.messages import Delivery, PromptLine
from multitap.control.methods import Control
from multitap.results.blocks import block


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only those of this server")
@gateway_or_server_options
@json_option
def prompts(
    options: CommonOptions, pattern: str | None, *, server: str | None, as_json: bool
) -> int:
    """List the prompts and their arguments"""
    offered = list_offers(options, lambda control: control.prompts(), server=server)
    listed = [prompt for prompt in offered if fits(pattern, prompt.name, _description(prompt))]
    if as_json:
        say_json(
            [
                {**prompt.definition, "name": prompt.name, "server": prompt.server}
                for prompt in listed
            ]
        )
    elif listed:
        rows = [(prompt.name, _signature(prompt), _description(prompt)) for prompt in listed]
        table(("PROMPT", "ARGUMENTS", "DESCRIPTION"), rows)
    return check_matches(pattern, offered, listed)


@click.command(cls=ServerCommand)
@click.argument("name")
@click.argument("typed", nargs=-1, metavar="[KEY=VALUE]...")
@gateway_or_server_options
@json_option
def prompt(options: CommonOptions, name: str, typed: tuple[str, ...], *, as_json: bool) -> int:
    """Fill in a prompt and print it

    KEY=@FILE reads the value from a file.
    """
    pairs = words(typed)

    async def fill(control: Control) -> Delivery:
        arguments = _arguments(await control.prompt(name, options.timeout), pairs)
        return await control.fill(name, arguments, options.timeout)

    delivery = Target(options, load_configuration(options)).use(fill, name=name)
    result: dict[str, Any] = msgspec.json.decode(delivery.result)
    if as_json:
        say_json(result)
        return Exit.DONE
    for message in result["messages"]:
        content = block(Raw(msgspec.json.encode(message["content"])))
        say_text(f"{message['role']}: {content}")
    return Exit.DONE


def _arguments(prompt: PromptLine, typed: tuple[ArgumentWord, ...]) -> dict[str, str]:
    schemas = dict(_argument_schemas(prompt))
    arguments = texts(typed, [*schemas])
    for name, argument in schemas.items():
        if argument.get("required") is True and name not in arguments:
            raise bad_argument(name, "it is missing", _text(argument.get("description")) or None)
    return arguments


def _argument_schemas(prompt: PromptLine) -> Iterator[tuple[str, dict[str, Any]]]:
    arguments = prompt.definition.get("arguments")
    for argument in arguments if is_list(arguments) else ():
        if is_object(argument) and isinstance(name := argument.get("name"), str):
            yield name, argument


def _signature(prompt: PromptLine) -> str:
    return " ".join(
        name if argument.get("required") is True else f"[{name}]"
        for name, argument in _argument_schemas(prompt)
    )


def _description(prompt: PromptLine) -> str:
    definition = prompt.definition
    text = _text(definition.get("description")) or _text(definition.get("title"))
    return text.strip().partition("\n")[0]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
