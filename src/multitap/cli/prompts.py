"""`multitap prompts` and `multitap prompt`: texts that servers prepare."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from mcp_types import GetPromptResult
from msgspec import Raw

from multitap.catalog import Prompt
from multitap.cli.asked import Asked
from multitap.cli.configured import configured
from multitap.cli.data import say_json
from multitap.cli.exits import Exit
from multitap.cli.listing import fits, listed
from multitap.cli.opening import adapted, on_demand, opened
from multitap.cli.output import say_text
from multitap.cli.reaching import check_owner, reach
from multitap.cli.running import run_async
from multitap.cli.tables import table
from multitap.cli.words import Word, refused, texts, words
from multitap.config import Loaded
from multitap.content.blocks import block
from multitap.errors import UnknownName
from multitap.schemas.values import is_list, is_object


def prompts(asked: Asked, pattern: str | None, *, server: str | None, as_json: bool) -> int:
    """List those that fit."""
    found = [
        prompt
        for prompt in listed(asked, lambda hub: hub.catalog.prompts.values(), server=server)
        if server in {None, prompt.server} and fits(pattern, prompt.name, _description(prompt))
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
    result = run_async(lambda: _filled(loaded, asked, name, taken))
    if as_json:
        say_json(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return Exit.DONE
    for message in result.messages:
        content = message.content.model_dump_json(by_alias=True, exclude_none=True)
        say_text(f"{message.role}: {block(Raw(content.encode()))}")
    return Exit.DONE


async def _filled(
    loaded: Loaded, asked: Asked, name: str, given: tuple[Word, ...]
) -> GetPromptResult:
    async with opened(loaded, adapted(loaded, asked, on_demand)) as hub:
        found = await reach(hub, lambda: hub.catalog.prompts.get(name))
        if found is None:
            check_owner(loaded, hub, name)
            near = get_close_matches(name, hub.catalog.prompts, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownName(
                f"no prompt named {name!r}", hint=f"{hint}`multitap prompts` lists what there is"
            )
        return await hub.prompt(name, _arguments(found, given))


def _arguments(prompt: Prompt, given: tuple[Word, ...]) -> dict[str, str]:
    known = dict(_taken(prompt))
    arguments = texts(given, [*known])
    for name, argument in known.items():
        if argument.get("required") is True and name not in arguments:
            raise refused(name, "it is missing", _text(argument.get("description")) or None)
    return arguments


def _taken(prompt: Prompt) -> Iterator[tuple[str, dict[str, Any]]]:
    arguments = prompt.definition.get("arguments")
    for argument in arguments if is_list(arguments) else ():
        if is_object(argument) and isinstance(name := argument.get("name"), str):
            yield name, argument


def _signature(prompt: Prompt) -> str:
    return " ".join(
        name if argument.get("required") is True else f"[{name}]"
        for name, argument in _taken(prompt)
    )


def _description(prompt: Prompt) -> str:
    definition = prompt.definition
    words = _text(definition.get("description")) or _text(definition.get("title"))
    return words.strip().partition("\n")[0]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
