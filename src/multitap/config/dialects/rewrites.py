"""From each host's way to write variables to ours."""

import re
from pathlib import Path

from multitap.config.dialects.draft import Rewrite

_BARE = re.compile(r"(?<!\$)\$([A-Za-z_]\w*)")
# a name ends where another variable begins, or a text full of beginnings would take hours
_SECRET = re.compile(r"\$\{\{\s*(?:secrets|inputs)\.([^}\s$]+)\s*\}\}")
_BRACES = re.compile(r"\$?\{(env|file):([^}{]+)\}|\$\{")


def literal(text: str) -> str:
    """Where a host knows no variables, `${` is just text."""
    return text.replace("${", "$${")


def only(*forms: str) -> Rewrite:
    """Where a host knows only these forms, every other `${` is just text."""
    other = re.compile(r"\$\{(?!" + "|".join(forms) + ")")
    return lambda text: other.sub("$${", text)


def bare(text: str) -> str:
    """`$NAME` besides `${NAME}`."""
    return _BARE.sub(r"${\1}", text)


def secrets(text: str) -> str:
    """`${{ secrets.NAME }}`."""
    return _SECRET.sub(r"${env:\1}", text)


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
