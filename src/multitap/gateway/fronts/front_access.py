"""Decides who may use an HTTP front, from the options and this machine's users."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from multitap.errors import ConfigError
from multitap.gateway.fronts.token_sources import TokenSources
from multitap.http.loopback import is_loopback
from multitap.http.server.access import Access, AnonymousAccess
from multitap.http.server.peer_user import PeerUsers
from multitap.records import dataclass
from multitap.trust.access_tokens import AccessTokens

CREATE = "`multitap token create NAME` creates one"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The options of `serve` about access."""

    host: str
    """Where the front listens."""
    hosts: tuple[str, ...] = ()
    """Further host names that it answers to."""
    token_file: Path | None = None
    """A file with more tokens; with it, every client needs a token."""
    require_token: bool = False
    """Whether every client needs a token."""
    insecure: bool = False
    """Whether no client needs a token."""


@dataclass(frozen=True, slots=True)
class FrontAccess:
    """The access rules of a running front."""

    access: Access
    sources: TokenSources
    is_token_required: bool
    is_user_unknown: bool
    """Whether a token is required only because this machine does not tell users apart."""


@contextmanager
def open_access(rules: AccessRules) -> Generator[FrontAccess]:
    """Within the block, requests can be admitted or rejected.

    Raises:
        ConfigError: Other machines could connect without a token, or the tokens cannot be read.
    """
    sources = TokenSources(AccessTokens(), rules.token_file)
    _check_exposure(rules, sources)
    with PeerUsers() as users:
        is_told = users.can_tell(rules.host if is_loopback(rules.host) else "127.0.0.1")
        unnamed, is_user_unknown = _without_token(rules, is_told=is_told)
        access = Access(
            rules.host,
            sources.tokens,
            rules.hosts,
            keys=sources.keys,
            unnamed=unnamed,
            users=users if is_told else None,
        )
        yield FrontAccess(access, sources, unnamed is AnonymousAccess.REFUSED, is_user_unknown)


def _check_exposure(rules: AccessRules, sources: TokenSources) -> None:
    """Refuse to serve the network without tokens, unless the options allow it."""
    if is_loopback(rules.host) or rules.insecure or rules.require_token or len(sources):
        return
    raise ConfigError(
        f"{rules.host!r} is reachable from other machines, and there is no token yet",
        hint=f"{CREATE}; or listen on 127.0.0.1, or allow it: `--insecure`, or `insecure = true`"
        " under [serve]",
    )


def _without_token(rules: AccessRules, *, is_told: bool) -> tuple[AnonymousAccess, bool]:
    """How clients without a token are treated, and whether only because users are unknown."""
    if rules.token_file is not None or rules.require_token:
        return AnonymousAccess.REFUSED, False
    if rules.insecure:
        return AnonymousAccess.ADMITTED, False
    if not is_loopback(rules.host):
        return AnonymousAccess.REFUSED, False
    return (AnonymousAccess.OWN_USER, False) if is_told else (AnonymousAccess.REFUSED, True)
