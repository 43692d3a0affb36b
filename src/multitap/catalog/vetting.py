"""Decides which tools of a server are shown: those that match their pins and look safe."""

from collections.abc import Mapping

from multitap.records import dataclass
from multitap.store.fingerprint import fingerprint
from multitap.trust.pins.pin_drift import NO_DRIFT, Drift
from multitap.trust.pins.pinned_definition import pinned_part
from multitap.trust.pins.pins import Pins, pin_mode, pins_of
from multitap.trust.scanner.scanner import Finding, scan, scan_mode
from multitap.upstream.link import Link
from multitap.upstream.offer_lists import Definition


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a tool is neither shown nor called, and what to do about it."""

    words: str
    hint: str


@dataclass(frozen=True, slots=True)
class Vetted:
    """What became of one server's tools."""

    seen: Mapping[str, tuple[str, Definition]]
    """The digest and definition of each, by the server's own names; none if nobody looks."""
    withheld: Mapping[str, Reason]
    drift: Drift = NO_DRIFT
    warnings: tuple[str, ...] = ()
    """The drift in words, for people."""


class Vetting:
    """Looks at the tools of servers, and remembers what scans found.

    Args:
        pins: What servers offered when a person relied on it.
    """

    def __init__(self, pins: Pins) -> None:
        self.pins = pins
        self.findings: dict[str, tuple[Finding, ...]] = {}
        """By the digest of a definition."""

    def vet(self, link: Link, usable: Mapping[str, Definition], names: Mapping[str, str]) -> Vetted:
        """Compare what a server offers with what is pinned, and search it if attacks are blocked.

        Args:
            link: The server.
            usable: Its tools by its own names.
            names: What callers call them.
        """
        config = link.config
        pinning, scanning = pin_mode(config), scan_mode(config)
        if pinning == scanning == "off":
            return Vetted({}, {})
        # a lock is meant to be committed: what the server was given in confidence stays out of it
        parts = link.report.redact.data([pinned_part(one) for one in usable.values()])
        pins = pins_of(zip(map(names.__getitem__, usable), parts, strict=True))
        seen = {raw: (pin.sha256, usable[raw]) for raw, pin in pins.items() if raw in usable}
        withheld: dict[str, Reason] = {}
        if scanning == "block":
            withheld |= self._blocked(link.name, seen)
        drift = self.pins.judge(link.name, config, fingerprint(config), pins)
        if pinning == "enforce":
            hint = f"run `multitap pins review {link.name}`"
            apart = usable if drift.damage else drift.tools
            withheld |= {raw: Reason(drift.reason(raw), hint) for raw in apart}
        words = drift.words(link.name, withheld=pinning == "enforce") if drift else ""
        return Vetted(seen, withheld, drift, (words,) if words else ())

    def look(self, digest: str, definition: Definition) -> tuple[Finding, ...]:
        """What a scan finds in a definition."""
        if (found := self.findings.get(digest)) is None:
            found = self.findings[digest] = scan(definition)
        return found

    def _blocked(
        self, server: str, seen: Mapping[str, tuple[str, Definition]]
    ) -> dict[str, Reason]:
        hint = f'`multitap doctor {server}` shows it; `scan = "report"` allows it'
        return {
            raw: Reason(f"it looks like an attack: {found[0].words}", hint)
            for raw, (digest, definition) in seen.items()
            if (found := self.look(digest, definition))
        }
