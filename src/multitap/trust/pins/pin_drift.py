"""How a server's offers differ from what is pinned."""

from collections.abc import Iterator, Mapping

import msgspec

from multitap.errors import counted, quoted
from multitap.records import dataclass
from multitap.trust.pins.lock_file import UNKNOWN, LockedPackage, ServerPins, ToolPin
from multitap.trust.pins.pinned_definition import comes_and_goes

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class PinDrift:
    """The differences; empty where there are none."""

    changed: tuple[str, ...] = ()
    """The server's own names of tools that say something else now."""
    new: tuple[str, ...] = ()
    """The same of tools that it did not have."""
    unlocked: tuple[str, ...] = ()
    """Tools that the project's own lock does not have like this."""
    others: tuple[str, ...] = ()
    """Prompts, resources, templates and instructions that are not as they were, by their keys."""
    package: str = ""
    """What became of its package, in words."""
    damage: str = ""
    """Why nothing can be compared."""

    def __bool__(self) -> bool:
        return bool(self.tools or self.others or self.package or self.damage)

    @property
    def tools(self) -> tuple[str, ...]:
        return (*self.changed, *self.new, *self.unlocked)

    def reason(self, tool: str) -> str:
        """Why a tool is withheld."""
        if self.damage:
            return f"it cannot be compared with its pin: {self.damage}"
        if tool in self.changed:
            return "its definition differs from the pinned one"
        if tool in self.new:
            return "its server did not have it when its tools were pinned"
        return "its definition differs from the project's lock"

    def words(self, server: str, *, withheld: bool) -> str:
        """All of it in one line."""
        if self.damage:
            return f"pins: the tools cannot be compared with their pins: {self.damage}"
        parts = [
            *_list_tools(self.changed, "changed", withheld=withheld),
            *_list_tools(self.new, "new", withheld=withheld),
            *_list_tools(self.unlocked, "not as in the project's lock", withheld=withheld),
            *_list_tools(self.others, "changed or new", withheld=withheld, noun="other offer"),
            self.package,
            f"run `multitap pins review {server}`",
        ]
        return f"pins: {'; '.join(filter(None, parts))}"


NO_DRIFT = PinDrift()


def drift_of(
    seen: Mapping[str, ToolPin],
    pins: ServerPins | None,
    project: ServerPins | None,
    package: LockedPackage | None,
    others: Mapping[str, ToolPin],
) -> PinDrift:
    """What is different; for a server never seen before, only what the project's lock contradicts.

    Args:
        seen: What the server offers, by its own names.
        pins: What this user relied on; None if the server was never seen.
        project: What the project's own lock says; None: nothing.
        package: What is started now; None if nobody knows.
        others: What else the server offers, by key.
    """
    known = seen if pins is None else pins.tools
    changed = [raw for raw, pin in seen.items() if raw in known and known[raw].sha256 != pin.sha256]
    new = [raw for raw in seen if raw not in known]
    told = {*changed, *new}
    locked = seen if project is None else project.tools
    unlocked = [
        raw
        for raw, pin in seen.items()
        if raw not in told and (raw not in locked or locked[raw].sha256 != pin.sha256)
    ]
    before = pins.package if pins is not None else _portable(project)
    odd = dict.fromkeys(
        key for one in (pins, project) if one is not None for key in _odd_others(others, one)
    )
    return PinDrift(
        tuple(changed), tuple(new), tuple(unlocked), (*odd,), _package_change(before, package)
    )


def _odd_others(seen: Mapping[str, ToolPin], pins: ServerPins) -> Iterator[str]:
    """What is not a tool, and not as it was."""
    if (known := pins.others) is None:
        return
    for key, pin in seen.items():
        if key in known:
            if known[key].sha256 != pin.sha256:
                yield key
        # Resources appear and vanish with the data behind them: only a changed one is worth a
        # question.
        elif not comes_and_goes(key):
            yield key


def _portable(project: ServerPins | None) -> LockedPackage | None:
    """What a project's lock says of a package on every machine: others may get other files."""
    package = None if project is None else project.package
    if package is None or package.kind == "npm":
        return package
    return msgspec.structs.replace(package, integrity=UNKNOWN)


def _package_change(before: LockedPackage | None, now: LockedPackage | None) -> str:
    """What became of a package; what nobody knows of it is not compared."""
    if before is None or now is None or before.same_as(now):
        return ""
    digests = f", {before.integrity} before and {now.integrity} now"
    return f"its package is {now}, and was {before}" + (digests if str(now) == str(before) else "")


def _list_tools(
    tools: tuple[str, ...], what: str, *, withheld: bool, noun: str = "tool"
) -> list[str]:
    if not tools:
        return []
    named = ", ".join(quoted(tool) for tool in tools[:_MOST_NAMED])
    rest = f" and {len(tools) - _MOST_NAMED} more" if len(tools) > _MOST_NAMED else ""
    state = f"{what} and withheld" if withheld else what
    return [f"{counted(len(tools), noun)} {state}: {named}{rest}"]
