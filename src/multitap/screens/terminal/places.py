"""The six places of the screen: their columns and keys."""

from multitap.records import dataclass


@dataclass(frozen=True, slots=True)
class ScreenPlace:
    """One of the six places."""

    name: str
    title: str
    header: tuple[str, ...]
    spare: tuple[str, ...] = ()
    """Columns that a narrow terminal leaves out, in this order."""
    verbs: frozenset[str] = frozenset()
    """The verbs of `KEYS` that work in this place."""
    empty: str = ""
    """The text for an empty list."""


SERVERS = ScreenPlace(
    "servers",
    "Servers",
    (
        "SERVER",
        "STATE",
        "TOOLS",
        "TOKENS",
        "CALLS",
        "ERR",
        "P95",
        "TREND",
        "RESTARTS",
        "ERA",
        "LEVEL",
        "NOTE",
    ),
    ("ERA", "TOKENS", "RESTARTS", "CALLS", "TREND", "P95", "LEVEL"),
    frozenset({"restart", "switch", "login", "log", "tools", "trust"}),
    "There are no servers; `multitap add NAME` adds one.",
)
CALLS = ScreenPlace(
    "calls",
    "Calls",
    (
        "AT",
        "SERVER",
        "TOOL",
        "STATUS",
        "TOOK",
        "WHERE TIME WENT",
        "CLIENT",
        "NOTE",
    ),
    ("AT", "CLIENT"),
    frozenset({"replay", "compare"}),
    "No calls yet. They appear here as clients make them; `c` in Tools makes one.",
)
TOOLS = ScreenPlace(
    "tools",
    "Tools",
    ("TOOL", "SERVER", "TOKENS", "DESCRIPTION"),
    ("SERVER", "TOKENS"),
    frozenset({"call"}),
    "No server offers a tool.",
)
CLIENTS = ScreenPlace(
    "clients",
    "Clients",
    ("CLIENT", "VERSION", "ERA", "PROFILE", "TOKEN", "CALLS", "BUSY", "CAN BE ASKED"),
    ("VERSION", "TOKEN", "BUSY"),
    frozenset({"calls"}),
    "No client is connected; `multitap install CLIENT` configures one.",
)
ACCESS = ScreenPlace(
    "access",
    "Access",
    ("KIND", "NAME", "STATE", "NOTE"),
    verbs=frozenset({"revoke", "new"}),
    empty="There are no tokens, no questions, and nothing to review.",
)
LOG = ScreenPlace(
    "log",
    "Log",
    ("TIME", "LEVEL", "SERVER", "WHAT"),
    empty="Nothing has happened yet.",
)
PLACES = (SERVERS, CALLS, TOOLS, CLIENTS, ACCESS, LOG)

KEYS = (
    ("r", "restart", "Restart"),
    ("r", "replay", "Replay"),
    ("e", "switch", "On/off"),
    ("o", "login", "Log in"),
    ("l", "log", "Log"),
    ("t", "tools", "Tools"),
    ("T", "trust", "Trust"),
    ("d", "compare", "Compare"),
    ("c", "call", "Call"),
    ("c", "calls", "Its calls"),
    ("x", "revoke", "Revoke"),
    ("n", "new", "New token"),
)
"""Key, verb and label; two verbs share a key if no place has both."""


def place_named(name: str) -> ScreenPlace:
    return next(place for place in PLACES if place.name == name)
