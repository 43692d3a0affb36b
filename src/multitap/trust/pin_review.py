"""What waits for review, and what a person decides about it."""

from collections.abc import Iterator, Mapping

import msgspec

from multitap.config.models import ServerConfig
from multitap.trust import audit
from multitap.trust.lock_file import ServerPins, ToolPin, visible_json
from multitap.trust.pins import LockPlaces


class ServerReview(msgspec.Struct, frozen=True):
    """One server: its accepted definitions, and its current ones."""

    server: str
    config: ServerConfig
    pins: ServerPins
    project: ServerPins | None
    """The entry in the project's own lock."""

    @property
    def is_due(self) -> bool:
        return bool(self.pins.waiting or self.pins.pending_package)

    def before(self, tool: str) -> ToolPin | None:
        """The pinned definition of an offer; the project's if only that one differs."""
        is_tool = tool in self.pins.pending
        own, locked = (
            _find_pin(pins, tool, is_tool=is_tool)
            for pins in (self.pins, self.project or ServerPins())
        )
        return locked if own is None or own.sha256 == self.pins.waiting[tool].sha256 else own


def reviews(places: LockPlaces, servers: Mapping[str, ServerConfig]) -> list[ServerReview]:
    """All pinned servers.

    Raises:
        LockError: A lock file is damaged.
    """
    contents = {file: file.read().servers for file in places.files}
    reviews: list[ServerReview] = []
    for server, config in servers.items():
        own, project = places.of(config)
        if (pins := contents[own].get(server)) is not None:
            locked = contents[project].get(server) if project else None
            reviews.append(ServerReview(server, config, pins, locked))
    return reviews


def accept(places: LockPlaces, review: ServerReview) -> None:
    """Pin the reviewed definitions, and no later ones.

    Raises:
        LockError: A lock file is damaged, or cannot be written.
    """
    own, project = places.of(review.config)
    # the project's first: if it cannot be written, the tools stay withheld
    for file in filter(None, (project, own)):
        with file.changing() as content:
            pins = content.servers.get(review.server, ServerPins())
            content.servers[review.server] = _accept(pins, review, is_own=file is own)
    details = [f"{raw} {pin.sha256[:12]}" for raw, pin in review.pins.waiting.items()]
    details += [f"package {review.pins.pending_package}"] if review.pins.pending_package else []
    audit.record("pins.accepted", server=review.server, decision="allow", detail="; ".join(details))


def refuse(review: ServerReview) -> None:
    """Record that a person was shown the changes and did not accept them."""
    details = ", ".join(review.pins.waiting)
    audit.record("pins.refused", server=review.server, decision="deny", detail=details)


def reset(places: LockPlaces, server: str, config: ServerConfig) -> bool:
    """Forget the pins, so that the next list counts as the first; returns whether there were any.

    Raises:
        LockError: A lock file is damaged, or cannot be written.
    """
    is_pinned = False
    for file in filter(None, places.of(config)):
        with file.changing() as content:
            is_pinned |= content.servers.pop(server, None) is not None
    if is_pinned:
        audit.record("pins.reset", server=server)
    return is_pinned


def _find_pin(pins: ServerPins, waiting: str, *, is_tool: bool) -> ToolPin | None:
    """The pinned definition of an offer that waits for review."""
    if is_tool:
        return pins.tools.get(waiting)
    others = pins.others or {}
    return others.get(waiting) or others.get(waiting.rstrip("*"))


def _accept(pins: ServerPins, review: ServerReview, *, is_own: bool) -> ServerPins:
    agreed = review.pins.pending
    package = review.pins.pending_package or review.pins.package
    tools = {**pins.tools, **agreed}
    others = {**(pins.others or {}), **review.pins.pending_others}
    if not is_own:
        return msgspec.structs.replace(pins, tools=tools, package=package, others=others)
    left = {
        key: pin
        for key, pin in pins.pending_others.items()
        if review.pins.pending_others.get(key) != pin
    }
    pins = msgspec.structs.replace(pins, others=others, pending_others=left)
    later = {raw: pin for raw, pin in pins.pending.items() if agreed.get(raw) != pin}
    moved = pins.pending_package if pins.pending_package != package else None
    return msgspec.structs.replace(
        pins, tools=tools, pending=later, package=package, pending_package=moved
    )


_TOO_LONG = "(a definition that is too long to be kept: only its digest is known)"
_CONTEXT = 3


def difference(before: ToolPin | None, now: ToolPin) -> Iterator[str]:
    """The removed and added lines; all lines of a new tool."""
    from difflib import unified_diff  # noqa: PLC0415 - a gateway imports this, and seldom shows it

    old, new = _lines(before) if before else [], _lines(now)
    for number, line in enumerate(unified_diff(old, new, n=_CONTEXT, lineterm="")):
        if number > 1:  # the two header lines
            yield line


def _lines(pin: ToolPin) -> list[str]:
    if pin.definition is None:
        return [_TOO_LONG, f"sha256 {pin.sha256}"]
    # a long description in one line would hide what is in its middle
    return visible_json(pin.definition).replace("\\n", "\n    ").splitlines()
