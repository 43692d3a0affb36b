"""Resources and templates that nobody can read until a person has reviewed them."""

import posixpath
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from multitap.catalog.address_directory import fits
from multitap.catalog.vetting import WithholdingReason
from multitap.errors import NotAllowed, quoted

_RESOURCE, _TEMPLATE = "resource ", "template "


class WithheldResources:
    """Withheld resources of all servers, by the servers' own addresses.

    Args:
        withheld: Withheld items besides tools, by server: `resource URI`, `template URI`.
    """

    def __init__(self, withheld: Mapping[str, Mapping[str, WithholdingReason]]) -> None:
        self._resources = {server: _of_kind(_RESOURCE, held) for server, held in withheld.items()}
        self._templates = {server: _of_kind(_TEMPLATE, held) for server, held in withheld.items()}
        self._spellings = {
            server: {_canonical(uri): reason for uri, reason in held.items()}
            for server, held in self._resources.items()
        }

    def check(self, server: str, uri: str, shown: Iterable[str]) -> None:
        """Check that an address is not withheld, in any spelling.

        Args:
            server: The owner of the address.
            uri: The server's own address.
            shown: Addresses and templates of the server that may be read.

        Raises:
            NotAllowed: It waits for review, or only a withheld template matches it.
        """
        reason = self._reason(server, uri, shown)
        if reason is not None:
            raise NotAllowed(
                f"the resource {quoted(uri)} is withheld: {reason.words}", hint=reason.hint
            )

    def _reason(self, server: str, uri: str, shown: Iterable[str]) -> WithholdingReason | None:
        if not self._resources.get(server) and not self._templates.get(server):
            return None  # true for nearly every server
        readable = frozenset(shown)
        if uri in readable:
            return None
        plain = _canonical(uri)
        if (reason := self._spellings[server].get(plain)) is not None:
            return reason
        if any(fits(template, uri) for template in readable):
            return None
        for template, reason in self._templates[server].items():
            if template == uri or fits(template, uri) or fits(template, plain):
                return reason
        return None


def _of_kind(kind: str, held: Mapping[str, WithholdingReason]) -> dict[str, WithholdingReason]:
    return {name.removeprefix(kind): held[name] for name in held if name.startswith(kind)}


# A server decides what an address means: it may well take `note://%61` and `NOTE://a/.` for the
# `note://a` that is withheld.
def _canonical(uri: str) -> str:
    scheme, colon, rest = unquote(unquote(uri)).partition(":")
    path, mark, query = rest.partition("#")[0].partition("?")
    slashes = "//" if path.startswith("//") else ""
    plain = posixpath.normpath(path.lstrip("/") or ".")
    return f"{scheme.lower()}{colon}{slashes}{plain.lower()}{mark}{query}"
