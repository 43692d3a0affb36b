"""The policy rules of a configuration, and the hosts they list."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta

from multitap.config.checks import ConfigModel, FieldMistake, Paths, Texts
from multitap.config.problems import Place

# Most servers refuse longer addresses; here one counts as unclear, which no rule allows.
LONGEST = 8192

# Only URLs that every parser reads in the same way: no user, no backslash, no white space, no
# empty host. Programs disagree about others, and the server's own parser decides.
_URL = re.compile(
    r"(?:[a-zA-Z][a-zA-Z0-9+.-]*://)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/\\?#@:\[\]%\x00-\x20\x7f]+)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?:/[^\\\s\x00-\x20\x7f]*|[?#][^\\\s@\x00-\x20\x7f]*)?"
)
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)")
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_DEVIATIONS = frozenset("ßς\u200c\u200d\u0130\u0131")
"""Letters that versions of IDNA convert to different names."""

Address = IPv4Address | IPv6Address


class HostList(msgspec.Struct, frozen=True, dict=True):
    """The hosts of a rule."""

    written: tuple[str, ...]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for host in self.written if (name := _written_name(host)))

    @cached_property
    def _suffixes(self) -> tuple[tuple[str, str], ...]:
        """The ends of names with a wildcard, and their ports."""
        split = (name.rpartition(":") for name in self._names if name.startswith("*."))
        return tuple((host[1:], port) for host, _, port in split)

    @cached_property
    def _networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(host, strict=False) for host in self.written if "/" in host)

    def has(self, url: object) -> bool | None:
        """Whether a URL leads to one of the hosts; None if programs may disagree about that."""
        if not isinstance(url, str) or len(url) > LONGEST:
            return None
        match = _URL.fullmatch(url)
        host = match and _canonical(match["host"])
        if not match or not host:
            return None
        port = match["port"] or ""
        if f"{host}:" in self._names or (port and f"{host}:{int(port)}" in self._names):
            return True
        if any(
            host.endswith(suffix) and its_port in {"", port} for suffix, its_port in self._suffixes
        ):
            return True
        return bool(self._networks) and _is_in(host, self._networks)


def is_host(written: str) -> bool:
    """Whether an entry of a rule is a valid host."""
    try:
        return bool(ip_network(written, strict=False) if "/" in written else _written_name(written))
    except ValueError:
        return False


def _written_name(written: str) -> str:
    """`host:port`, with an empty port for any; empty for a network or an invalid entry."""
    if "/" in written:
        return ""
    wild = written.startswith("*.")
    match = _URL.fullmatch(written[2:] if wild else written)
    host = match and _canonical(match["host"])
    if not match or not host:
        return ""
    return f"{'*.' if wild else ''}{host}:{match['port'] or ''}"


def _canonical(host: str) -> str | None:
    """The host as DNS and sockets know it; None if programs read it differently."""
    try:
        if host.startswith("["):
            return f"[{IPv6Address(host[1:-1])}]"
        if not host.isascii():
            if not _DEVIATIONS.isdisjoint(host):
                return None
            host = host.encode("idna").decode("ascii")
        # a final dot makes a name absolute, and leads to the same host
        host = host.lower().removesuffix(".")
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return str(
                IPv4Address(host)
            )  # some programs accept 127.1, 0x7f000001 and 0177.0.0.1 as addresses
    except ValueError:
        return None
    return host if _NAME.fullmatch(host) else None


def _is_in(host: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    try:
        address: Address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    # a connection to `::ffff:10.0.0.1` arrives at 10.0.0.1
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    addresses = (address,) if mapped is None else (address, mapped)
    return any(candidate in network for network in networks for candidate in addresses)


RuleDecision = Literal["allow", "ask", "deny"]
Hint = Literal["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]
Scalar = str | int | float | bool

_STEP = r"[^.\[\]]+(?:\[\*\])*"
_ARGUMENT = re.compile(rf"{_STEP}(?:\.{_STEP})*")


def pattern_check(pattern: str) -> Callable[[object], bool]:
    """Compile a pattern that matches in linear time: values are foreign and must not block us.

    Raises:
        ValueError: It is not a regular expression, or one that needs backtracking.
    """
    from pydantic_core import SchemaError, SchemaValidator  # noqa: PLC0415 - few rules have one

    try:
        # The regular expressions of pydantic-core are Rust's, which never backtrack; Python's `re`
        # does.
        checker = SchemaValidator({"type": "str", "strict": True, "pattern": pattern})
    except SchemaError as exc:
        reason = str(exc).rpartition("error: ")[2].strip()
        raise ValueError(f"not a regular expression that can be used: {reason}") from None
    return checker.isinstance_python


class ArgumentTest(ConfigModel, frozen=True, kw_only=True):
    """A condition on one argument; all given tests must hold."""

    inside: Paths | None = None
    """It is a path within one of these folders, links and `..` resolved."""
    outside: Paths | None = None
    """It is a path within none of these folders, links and `..` resolved."""
    host_in: Texts | None = None
    """It is a URL of one of these hosts: `example.com`, `*.example.com`, `example.com:8443`,
    `10.0.0.0/8`."""
    host_not_in: Texts | None = None
    """It is a URL of none of these hosts."""
    matches: str | None = None
    """A regular expression is found in it; look-around and back-references are not supported."""
    one_of: tuple[Scalar, ...] | None = None
    """It is one of these values."""
    none_of: tuple[Scalar, ...] | None = None
    """It is none of these values."""
    longer_than: Annotated[int, Meta(ge=0)] | None = None
    """It has more characters or, if it is a list, more items."""
    above: float | None = None
    """It is a number greater than this."""
    below: float | None = None
    """It is a number less than this."""
    given: bool | None = None
    """Whether the argument is present."""

    def mistakes(self) -> Iterator[FieldMistake]:
        if all(getattr(self, name) is None for name in self.__struct_fields__):
            yield "", f"needs one of: {', '.join(self.__struct_fields__)}"
        for name in ("host_in", "host_not_in"):
            for host in getattr(self, name) or ():
                if not is_host(host):
                    yield name, f"{host!r} is not a host: write a name, an address or a network"
        if self.matches is not None:
            try:
                pattern_check(self.matches)
            except ValueError as exc:
                yield "matches", str(exc)


class PolicyRule(ConfigModel, frozen=True, kw_only=True):
    """One rule of a policy; it applies to calls that meet all of its conditions."""

    decision: RuleDecision
    """`allow` the call, `ask` a person first, or `deny` it."""
    servers: Texts = ("*",)
    """Globs over the names of servers."""
    tools: Texts = ("*",)
    """Globs over the names of tools: those that callers see, and the servers' own; an `allow` goes
    by the servers' own only with `servers`."""
    hints: Mapping[Hint, bool] = {}
    """What the tool's annotations must say; missing ones have MCP's defaults."""
    arguments: Mapping[str, ArgumentTest] = {}
    """Tests by argument name; `options.path` is in an object, `paths[*]` each item of a list."""
    reason: str | None = None
    """Shown to the caller, and to the person who is asked."""

    def mistakes(self) -> Iterator[FieldMistake]:
        for name in self.arguments:
            if not _ARGUMENT.fullmatch(name):
                yield "", f"{name!r} is not an argument: write `name`, `a.b` or `items[*]`"

    @property
    def place(self) -> Place | None:
        """Where it is written; not part of its value, so a moved rule stays equal."""
        place: Place | None = self.__dict__.get("_place")
        return place

    def at(self, place: Place) -> Self:
        """The same rule with its place."""
        copy = self.replace()
        copy.beside["_place"] = place
        return copy
