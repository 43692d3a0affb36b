"""Prompts from the configuration, with their arguments filled in."""

import re
from collections.abc import Mapping

from multitap.config import PromptConfig, Scope
from multitap.config.scope import content, expand
from multitap.errors import BadArguments

_PLACE = re.compile(r"\{(\w+)\}")


def text_of(prompt: PromptConfig, scope: Scope) -> str:
    """The text of a prompt, before its arguments are filled in.

    Raises:
        ConfigError: Its file cannot be read.
    """
    if prompt.file is not None:
        return content(expand(str(prompt.file), scope), scope)
    return prompt.text or ""


def fill(text: str, declared: Mapping[str, str], arguments: Mapping[str, str]) -> str:
    """A text with its arguments filled in; any other `{word}` stays as it is.

    Raises:
        BadArguments: One is missing, or is not declared.
    """
    for name in arguments.keys() - declared.keys():
        raise BadArguments(
            f"the prompt has no argument {name!r}",
            path=f"/{name}",
            hint=f"it has: {', '.join(declared) or 'none'}",
        )
    for name in declared.keys() - arguments.keys():
        raise BadArguments(
            f"the prompt needs the argument {name!r}",
            path=f"/{name}",
            hint=declared[name] or None,
        )
    return _PLACE.sub(lambda match: arguments.get(match[1], match[0]), text)
