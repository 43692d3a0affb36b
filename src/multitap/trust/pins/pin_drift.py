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
    """The differences; may be empty."""

    changed: tuple[str, ...] = ()
    """Changed tools, by the server's own names."""
    new: tuple[str, ...] = ()
    """New tools, by the server's own names."""
    unlocked: tuple[str, ...] = ()
    """Tools that differ from the project's own lock."""
    others: tuple[str, ...] = ()
    """Changed prompts, resources, templates and instructions, by their keys."""
    package: str = ""
    """The change of its package, in words."""
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
        """All differences in one line."""
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
    """The differences; for a new server, only those from the project's lock.

    Args:
        seen: The current tools, by the server's own names.
        pins: This user's pins; None if the server is new.
        project: The entry in the project's own lock, if any.
        package: The package that runs now; None if unknown.
        others: The other current offers, by key.
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
    """Changed offers that are not tools."""
    if (known := pins.others) is None:
        return
    for key, pin in seen.items():
        if key in known:
            if known[key].sha256 != pin.sha256:
                yield key
        # Resources come and go with their data: only a changed one is reported.
        elif not comes_and_goes(key):
            yield key


def _portable(project: ServerPins | None) -> LockedPackage | None:
    """A package in a project's lock, without the digest, which differs between machines."""
    package = None if project is None else project.package
    if package is None or package.kind == "npm":
        return package
    return msgspec.structs.replace(package, integrity=UNKNOWN)


def _package_change(before: LockedPackage | None, now: LockedPackage | None) -> str:
    """The change of a package; unknown values are not compared."""
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
