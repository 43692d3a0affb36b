"""Shows a server before it is added: everything that decides what it can do."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from multitap.config import HttpServer, StdioServer, masked
from multitap.config.edit.server_draft import ServerDraft
from multitap.config.mask import MASK
from multitap.config.models import OAuth
from multitap.config.provenance import STANDINGS
from multitap.config.secrets import in_headers, in_variables
from multitap.config.steering_variables import risk_of
from multitap.sandbox.containers import objections, parse_container_run
from multitap.sandbox.levels import Confinement
from multitap.trust.projects.project_parts import quote_word, visible

LONGEST = 4000
"""Characters of one word that are shown; more than any honest command line has."""
MOST = 60


def review_lines(
    name: str,
    config: StdioServer | HttpServer,
    draft: ServerDraft,
    confinement: Confinement | None,
    *,
    writable: Sequence[str] = (),
) -> Iterator[str]:
    """The lines that a person reads before a server is started for the first time.

    Args:
        name: Its name.
        config: Its configuration, without secrets that go to the vault.
        draft: Where it comes from.
        confinement: How much it will be confined; None for a remote server.
        writable: Folders that it may change.
    """
    standing = STANDINGS[draft.provenance]
    if not standing.is_own:
        whose = (
            "is a package of a registry" if draft.is_typed else f"is described by {standing.author}"
        )
        yield f"{name} {whose}"
    if isinstance(config, StdioServer):
        argv = [os.path.expanduser(config.command), *masked("args", [*config.args])]  # noqa: PTH111 - a name is not a path
        yield f"{name}: {' '.join(map(show_word, argv))}"
        yield from (f"  with {line}" for line in _variables(config.env))
        if config.cwd is not None:
            yield f"  in {show_word(str(config.cwd.expanduser()))}"
    else:
        yield f"{name}: {visible(masked('url', config.url))}"
        yield from (f"  with {line}" for line in _headers(config.headers))
        if isinstance(config.oauth, OAuth) and config.oauth.client_id:
            yield f"  it logs in as {visible(config.oauth.client_id)}"
    if draft.note:
        yield f"  {visible(draft.note)}"
    if confinement is not None and not standing.is_own:
        yield f"  {confinement.level}: {confinement.meaning}"
        if confinement.confined:
            yield from (f"  may change {show_word(path)}" for path in writable)
        else:
            yield f"  it is not confined: {confinement.reason}"
    # what a stranger writes must not look like a line of ours
    warnings = map(visible, (*draft.warnings, *_container(config)))
    yield from (f"  warning: {warning}" for warning in warnings)


def show_word(word: str) -> str:
    """A word of a command line, quoted, with nothing invisible in it."""
    if len(word) > LONGEST:
        return f"{quote_word(word[:LONGEST])}… ({len(word) - LONGEST:,} more characters)"
    return quote_word(word)


def _variables(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in [*env.items()][:MOST]:
        risk = risk_of(name)
        shown = show_word(_without(value, in_variables({name: value})))
        yield f"{show_word(name)}={shown}{f'   ({risk})' if risk else ''}"
    yield from _missing(len(env), "variables")


def _headers(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in [*headers.items()][:MOST]:
        yield f"{visible(name)}: {visible(_without(value, in_headers({name: value})))}"
    yield from _missing(len(headers), "headers")


def _missing(count: int, what: str) -> Iterator[str]:
    if count > MOST:
        yield f"{count - MOST} more {what} that are not shown"


def _without(text: str, secrets: Iterator[str]) -> str:
    for secret in sorted(
        {secret for secret in secrets if "${" not in secret}, key=len, reverse=True
    ):
        text = text.replace(secret, MASK)
    return text


def _container(config: StdioServer | HttpServer) -> Iterator[str]:
    """What a container would get of this machine."""
    if not isinstance(config, StdioServer):
        return
    run = parse_container_run((config.command, *config.args))
    if run is not None:
        yield from objections(run, config.cwd or Path.cwd(), config.env)
