"""Shows what an edit would change in a file."""

import sys
from collections.abc import Iterable
from difflib import unified_diff
from pathlib import Path

from multitap.cli.terminal.output import Colour, colour_text, say
from multitap.config import HttpServer, StdioServer, merge, read_document, read_text
from multitap.config.edit.clear_secrets import clear_secrets
from multitap.config.edit.journal import Preview
from multitap.config.layers import Layer
from multitap.config.secrets import in_text
from multitap.printable import printable
from multitap.redaction import Redactor

_COLOURS: dict[str, Colour] = {"+": "green", "-": "red", "@": "bright_black"}


def show_differences(previews: Iterable[Preview]) -> None:
    """Print what changes, without secrets."""
    for one in previews:
        redact = Redactor({*_secrets(one.before, one.path), *_secrets(one.after, one.path)})
        before = one.before.splitlines()
        lines = unified_diff(
            before, one.after.splitlines(), str(one.path), str(one.path), lineterm=""
        )
        for line in lines:
            say(colour_text(printable(redact(line)), _COLOURS.get(line[:1]), sys.stdout))


def _secrets(text: str, path: Path) -> set[str]:
    """The secrets in a file: of its servers, and those that look like secrets."""
    found = {secret for line in text.splitlines() for secret in in_text(line)}
    document, _ = read_text(text, path)
    if document is not None:
        settings = merge([Layer(read_document(document, path.parent))]).settings
        for config in settings.servers.values():
            if isinstance(config, StdioServer | HttpServer):
                found.update(clear_secrets(config))
    return {secret for secret in found if "${" not in secret}
