"""`multitap prompts` and `multitap prompt`: texts that servers prepare."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mcp_types import GetPromptResult
from msgspec import Raw

from multitap.cli.asked import Asked
from multitap.cli.configured import configured
from multitap.cli.data import say_json
from multitap.cli.exits import Exit
from multitap.cli.listing import fits, listed
from multitap.cli.live import chosen, explained
from multitap.cli.output import say_text
from multitap.cli.running import run_async
from multitap.cli.tables import table
from multitap.cli.words import Word, refused, texts, words
from multitap.config import Loaded
from multitap.content.blocks import block
from multitap.schemas.values import is_list, is_object
from multitap.serve.control_words import PromptLine

if TYPE_CHECKING:
    from multitap.hub import Hub


def prompts(asked: Asked, pattern: str | None, *, server: str | None, as_json: bool) -> int:
    """List those that fit."""
    found = [
        prompt
        for prompt in listed(asked, _of_hub, lambda live: live.prompts(), server=server)
        if fits(pattern, prompt.name, _description(prompt))
    ]
    if as_json:
        say_json([{**one.definition, "name": one.name, "server": one.server} for one in found])
    elif found:
        rows = [(one.name, _signature(one), _description(one)) for one in found]
        table(("PROMPT", "ARGUMENTS", "DESCRIPTION"), rows)
    return Exit.DONE


def prompt(asked: Asked, name: str, given: tuple[str, ...], *, as_json: bool) -> int:
    """Print the messages it makes."""
    taken = words(given)
    loaded = configured(asked)
    live = chosen(asked, loaded)
    if live is not None:
        with explained(live, loaded, name):
            arguments = _arguments(live.prompt(name, asked.timeout), taken)
        filled = live.fill(name, arguments, asked.timeout)
        result = GetPromptResult.model_validate_json(filled)
    else:
        result = run_async(lambda: _filled(loaded, asked, name, taken))
    if as_json:
        say_json(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return Exit.DONE
    for message in result.messages:
        content = message.content.model_dump_json(by_alias=True, exclude_none=True)
        say_text(f"{message.role}: {block(Raw(content.encode()))}")
    return Exit.DONE


def _of_hub(hub: "Hub") -> list[PromptLine]:
    from multitap.serve.control_errands import prompt_lines  # noqa: PLC0415 - 0.5 s of imports

    return prompt_lines(hub)


async def _filled(
    loaded: Loaded, asked: Asked, name: str, given: tuple[Word, ...]
) -> GetPromptResult:
    # 0.5 s that a gateway spares
    from multitap.cli.opening import adapted, on_demand, opened  # noqa: PLC0415
    from multitap.cli.reaching import check_missing, named, reach  # noqa: PLC0415
    from multitap.serve.control_errands import prompt_line  # noqa: PLC0415
    from multitap.upstream.caller import CallContext  # noqa: PLC0415

    context = CallContext(timeout=asked.timeout)
    async with opened(loaded, adapted(loaded, asked, on_demand)) as hub:
        owns = named(loaded, name)
        found = await reach(hub, asked, lambda: hub.catalog.prompts.get(name), owns=owns)
        if found is None:
            check_missing(loaded, hub, owns)
            found = await hub.find_prompt(name)
        arguments = _arguments(prompt_line(found), given)
        return await hub.prompt(name, arguments, context=context)


def _arguments(prompt: PromptLine, given: tuple[Word, ...]) -> dict[str, str]:
    known = dict(_taken(prompt))
    arguments = texts(given, [*known])
    for name, argument in known.items():
        if argument.get("required") is True and name not in arguments:
            raise refused(name, "it is missing", _text(argument.get("description")) or None)
    return arguments


def _taken(prompt: PromptLine) -> Iterator[tuple[str, dict[str, Any]]]:
    arguments = prompt.definition.get("arguments")
    for argument in arguments if is_list(arguments) else ():
        if is_object(argument) and isinstance(name := argument.get("name"), str):
            yield name, argument


def _signature(prompt: PromptLine) -> str:
    return " ".join(
        name if argument.get("required") is True else f"[{name}]"
        for name, argument in _taken(prompt)
    )


def _description(prompt: PromptLine) -> str:
    definition = prompt.definition
    words = _text(definition.get("description")) or _text(definition.get("title"))
    return words.strip().partition("\n")[0]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
