"""Logins of programs with an identity from their platform or company."""

from pathlib import Path

import anyio

from multitap.config import OAuth
from multitap.config.project_bounds import read_inside
from multitap.regular_file import open_regular
from multitap.upstream.oauth.guarded_fetch import GuardedFetch
from multitap.upstream.oauth.oauth_errors import GrantRefused, LoginFailed

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_LONGEST = 64 * 1024  # bytes of an assertion
_OK = 200


async def bearer_form(
    known: OAuth, issuer: str, resource: str, *, within: Path | None = None
) -> dict[str, str]:
    """The grant of a program with a signed assertion about itself (RFC 7523).

    Where an identity provider is configured, the statement is an ID token, and the provider gives
    the one that the authorization server takes (SEP-990).

    Args:
        known: The configured login.
        issuer: The authorization server.
        resource: The server to log in at.
        within: The folder that a file with the statement must be in, for a project's server.

    Raises:
        LoginFailed: There is no statement, or the provider gives none.
    """
    statement = await _statement(known, within)
    if known.identity_provider is not None:
        statement = await _exchange(known, known.identity_provider, statement, issuer, resource)
    return {"grant_type": GRANT, "assertion": statement, "resource": resource}


async def _statement(known: OAuth, within: Path | None) -> str:
    """The assertion, read each time: platforms renew the file before it expires."""
    if known.assertion_file is None:
        if not known.assertion:
            raise LoginFailed("`oauth.assertion` or `oauth.assertion_file` is needed")
        return known.assertion.strip()
    path = known.assertion_file.expanduser()
    try:
        text = await anyio.to_thread.run_sync(_read, path, within)
    except OSError as exc:
        raise LoginFailed(f"{path} cannot be read: {exc.strerror}") from None
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise LoginFailed(f"{path} does not hold a JWT")
    return text


def _read(path: Path, within: Path | None) -> str:
    if within is not None:
        # A server that runs in the project may have put a link there since it started.
        return read_inside(within, path).strip()
    with open_regular(path) as file:
        return file.read(_LONGEST + 1).decode("ascii", "replace").strip()


async def _exchange(known: OAuth, provider: str, id_token: str, issuer: str, resource: str) -> str:
    # the provider comes from the configuration, not from the server: use its own address
    reply = await GuardedFetch(provider).post_form(
        provider,
        {
            "grant_type": _EXCHANGE,
            "requested_token_type": _ID_JAG,
            "subject_token": id_token,
            "subject_token_type": _ID_TOKEN,
            "audience": issuer,
            "resource": resource,
            "client_id": known.identity_client_id or known.client_id or "",
        },
    )
    said = reply.decode_json()
    given = said.get("access_token")
    if (
        reply.status != _OK
        or said.get("issued_token_type") != _ID_JAG
        or not isinstance(given, str)
    ):
        error = said.get("error") or f"the identity provider answers with HTTP {reply.status}"
        raise GrantRefused(str(error), str(said.get("error_description") or ""))
    return given
