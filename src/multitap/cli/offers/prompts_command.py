"""`multitap prompts` and `multitap prompt`: list prompts, and fill one in."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mcp_types import GetPromptResult
from msgspec import Raw

from multitap.catalog.schemas.argument_words import ArgumentWord, bad_argument, texts, words
from multitap.catalog.schemas.json_values import is_list, is_object
from multitap.cli.configuration.chosen_configuration import load_configuration
from multitap.cli.exits import Exit
from multitap.cli.gateways.running_gateways import choose_gateway, explain_unknown
from multitap.cli.offers.offer_listing import fits, list_offers
from multitap.cli.options import CommonOptions
from multitap.cli.running import run_async
from multitap.cli.terminal.output import say_json, say_text
from multitap.cli.terminal.tables import table
from multitap.config import Loaded
from multitap.gateway.fronts.control_messages import PromptLine
from multitap.results.blocks import block

if TYPE_CHECKING:
    from multitap.hub.hub import Hub


def prompts(
    options: CommonOptions, pattern: str | None, *, server: str | None, as_json: bool
) -> int:
    """List the matching prompts."""
    found = [
        prompt
        for prompt in list_offers(options, _of_hub, lambda live: live.prompts(), server=server)
        if fits(pattern, prompt.name, _description(prompt))
    ]
    if as_json:
        say_json([{**one.definition, "name": one.name, "server": one.server} for one in found])
    elif found:
        rows = [(one.name, _signature(one), _description(one)) for one in found]
        table(("PROMPT", "ARGUMENTS", "DESCRIPTION"), rows)
    return Exit.DONE


def prompt(options: CommonOptions, name: str, given: tuple[str, ...], *, as_json: bool) -> int:
    """Print the messages of a filled-in prompt."""
    taken = words(given)
    loaded = load_configuration(options)
    live = choose_gateway(options, loaded)
    if live is not None:
        with explain_unknown(live, loaded, name):
            arguments = _arguments(live.prompt(name, options.timeout), taken)
        filled = live.fill(name, arguments, options.timeout)
        result = GetPromptResult.model_validate_json(filled)
    else:
        result = run_async(lambda: _fill(loaded, options, name, taken))
    if as_json:
        say_json(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return Exit.DONE
    for message in result.messages:
        content = message.content.model_dump_json(by_alias=True, exclude_none=True)
        say_text(f"{message.role}: {block(Raw(content.encode()))}")
    return Exit.DONE


def _of_hub(hub: "Hub") -> list[PromptLine]:
    from multitap.gateway.fronts.control_actions import prompt_lines  # noqa: PLC0415 - 0.5 s of imports

    return prompt_lines(hub)


async def _fill(
    loaded: Loaded, options: CommonOptions, name: str, given: tuple[ArgumentWord, ...]
) -> GetPromptResult:
    # takes 0.5 s, not needed with a gateway
    from multitap.cli.command_hub import adapt, on_demand, open_command_hub  # noqa: PLC0415
    from multitap.cli.offers.offer_lookup import check_missing, owner_by_name, reach  # noqa: PLC0415
    from multitap.gateway.fronts.control_actions import prompt_line  # noqa: PLC0415
    from multitap.upstream.on_behalf_of import CallContext  # noqa: PLC0415

    context = CallContext(timeout=options.timeout)
    async with open_command_hub(loaded, adapt(loaded, options, on_demand)) as hub:
        owns = owner_by_name(loaded, name)
        found = await reach(hub, options, lambda: hub.catalog.prompts.get(name), owns=owns)
        if found is None:
            check_missing(loaded, hub, owns)
            found = await hub.lookup.find_prompt(name)
        arguments = _arguments(prompt_line(found), given)
        return await hub.prompt(name, arguments, context=context)


def _arguments(prompt: PromptLine, given: tuple[ArgumentWord, ...]) -> dict[str, str]:
    known = dict(_argument_schemas(prompt))
    arguments = texts(given, [*known])
    for name, argument in known.items():
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
    words = _text(definition.get("description")) or _text(definition.get("title"))
    return words.strip().partition("\n")[0]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
