"""Translates each host's variable syntax to ours."""

import re
from pathlib import Path

from multitap.config.dialects.draft import Rewrite
from multitap.config.dialects.unwritten_fields import Respell
from multitap.config.scope import FOLDERS

_BARE = re.compile(r"(?<!\$)\$([A-Za-z_]\w*)")
# a name ends at `$` and `{`: otherwise a text full of `${` would take quadratic time
_SECRET = re.compile(r"\$\{\{\s*(?:secrets|inputs)\.([^}\s$]+)\s*\}\}")
_BRACES = re.compile(r"\$?\{(env|file):([^}{]+)\}|\$\{")

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_NAMED = re.compile(r"(?<!\$)\$\{env:([A-Za-z_][A-Za-z0-9_]*)(\}|:-)")
_NO_FORM = "\0"
"""Marks text that the host cannot express; no configuration contains it."""


def literal(text: str) -> str:
    """For hosts without variables, where `${` is plain text."""
    return text.replace("${", "$${")


def only(*forms: str) -> Rewrite:
    """For hosts with only these forms, where every other `${` is plain text."""
    other = re.compile(r"\$\{(?!" + "|".join(forms) + ")")
    return lambda text: other.sub("$${", text)


def bare(text: str) -> str:
    """`$NAME` besides `${NAME}`."""
    return _BARE.sub(r"${\1}", text)


def secrets(text: str) -> str:
    """`${{ secrets.NAME }}`."""
    return _SECRET.sub(r"${env:\1}", text)


def respelling(
    rewrite: Rewrite,
    *,
    env: str | None = None,
    default: str | None = None,
    folders: bool = False,
    **sources: str,
) -> Respell:
    """Converts our variables to those of a host.

    The result is parsed again: a text that would then mean something else cannot be expressed.

    Args:
        rewrite: Converts the host's syntax to ours.
        env: The host's form of an environment variable, with `%s` for the name.
        default: The same for one with a default.
        folders: Whether it supports `${workspaceFolder}` and similar ones.
        sources: The forms of our other sources, such as `file`.
    """
    forms = {"env": env, **sources}

    def spelled(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        source, colon, name = match[1].partition(":-")[0].rpartition(":")
        given = match[1].partition(":-")[2] if ":-" in match[1] else None
        if not colon and name in FOLDERS:
            return match[0] if folders and given is None else _NO_FORM
        form = forms.get(source or "env") if given is None else default
        if form is None or (given is not None and source not in {"", "env"}):
            return _NO_FORM
        return form % (name if given is None else (name, given))

    def respell(text: str) -> str | None:
        made = _REFERENCE.sub(spelled, text)
        fits = _NO_FORM not in made and canonical(rewrite(made)) == canonical(text)
        return made if fits else None

    return respell


def canonical(text: str) -> str:
    """A text with a uniform spelling of environment variables."""
    return _NAMED.sub(r"${\1\2", text)


def braces(folder: Path) -> Rewrite:
    """`{env:NAME}` and `{file:path}`, the path relative to `folder`."""

    def replaced(match: re.Match[str]) -> str:
        source, name = match.groups()
        if source is None:
            return "$${"
        if source == "file" and not name.startswith("~"):
            name = str(folder / name)
        return f"${{{source}:{name}}}"

    return lambda text: _BRACES.sub(replaced, text)
