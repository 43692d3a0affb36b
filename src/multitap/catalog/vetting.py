"""Decides which offers of a server are shown: those that match their pins and look safe."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from multitap.catalog.addresses import WithholdingReason
from multitap.config.models import ServerConfig
from multitap.store.tables import fingerprint
from multitap.trust.lock_file import other_parts, pinned_part
from multitap.trust.pins import NO_DRIFT, PinDrift, Pins, pin_mode, pins_of, pins_of_others
from multitap.trust.scanner import Finding, scan, scan_mode, scan_other
from multitap.upstream.lists import Definition, Offers


def _none() -> Mapping[str, Any]:
    return MappingProxyType({})


class VettingResult(msgspec.Struct, frozen=True):
    """The verdict on one server's offers."""

    seen: Mapping[str, tuple[str, Definition]]
    """The digest and definition of each tool, by the server's own names; empty if unchecked."""
    withheld: Mapping[str, WithholdingReason]
    others: Mapping[str, tuple[str, Definition]] = msgspec.field(default_factory=_none)
    """The same for prompts, resources, templates and instructions, by kind and name."""
    withheld_others: Mapping[str, WithholdingReason] = msgspec.field(default_factory=_none)
    drift: PinDrift = NO_DRIFT
    warnings: tuple[str, ...] = ()
    """A description of the drift for people."""


Search = Callable[[Mapping[str, Any]], tuple[Finding, ...]]


class Vetting:
    """Checks the tools of servers, and remembers the findings of scans."""

    def __init__(self, pins: Pins) -> None:
        self.pins = pins
        self.findings: dict[str, tuple[Finding, ...]] = {}
        """Findings by the digest of a definition."""

    def vet(
        self,
        server: str,
        config: ServerConfig,
        usable: Mapping[str, Definition],
        *,
        names: Mapping[str, str],
        offers: Offers,
        instructions: str | None,
    ) -> VettingResult:
        """Compare what a server offers with what is pinned, and search it if attacks are blocked.

        Args:
            server: The server's name.
            config: Its configuration.
            usable: Its usable tools by its own names.
            names: Their names for callers.
            offers: Everything that it offers.
            instructions: How it says that it is to be used.
        """
        pinning, scanning = pin_mode(config), scan_mode(config)
        if pinning == scanning == "off":
            return VettingResult({}, {})
        parts = [pinned_part(definition) for definition in usable.values()]
        pins = pins_of(zip(map(names.__getitem__, usable), parts, strict=True))
        seen = {raw: (pin.sha256, usable[raw]) for raw, pin in pins.items() if raw in usable}
        rest = _others(offers, instructions)
        pinned = pins_of_others(rest)
        others = {key: (pin.sha256, rest[key]) for key, pin in pinned.items()}
        withheld: dict[str, WithholdingReason] = {}
        mute: dict[str, WithholdingReason] = {}
        if scanning == "block":
            withheld |= self._blocked_tools(server, seen, scan)
            mute |= self._blocked_tools(server, others, scan_other)
        # a list that could not be fetched does not show what was removed
        whole = not offers.missing
        drift = self.pins.judge(server, config, fingerprint(config), pins, pinned, whole=whole)
        if pinning == "enforce":
            hint = f"run `multitap pins review {server}`"
            apart = usable if drift.damage else drift.tools
            withheld |= {raw: WithholdingReason(drift.reason(raw), hint) for raw in apart}
            odd = [*others] if drift.damage else drift.others
            mute |= {
                key: WithholdingReason("it has changed since it was pinned", hint) for key in odd
            }
        report = drift.words(server, withheld=pinning == "enforce") if drift else ""
        return VettingResult(seen, withheld, others, mute, drift, (report,) if report else ())

    def look(
        self, digest: str, definition: Definition, search: Search = scan
    ) -> tuple[Finding, ...]:
        """The findings in a definition."""
        if (findings := self.findings.get(digest)) is None:
            findings = self.findings[digest] = search(definition)
        return findings

    def _blocked_tools(
        self, server: str, seen: Mapping[str, tuple[str, Definition]], search: Search
    ) -> dict[str, WithholdingReason]:
        hint = f'`multitap doctor {server}` shows it; `scan = "report"` allows it'
        return {
            raw: WithholdingReason(f"it looks like an attack: {findings[0].words}", hint)
            for raw, (digest, definition) in seen.items()
            if (findings := self.look(digest, definition, search))
        }


def _others(offers: Offers, instructions: str | None) -> dict[str, dict[str, Any]]:
    """A server's offers besides tools."""
    lists = {
        "prompt": offers.prompts,
        "resource": offers.resources,
        "template": offers.templates,
    }
    return other_parts(lists, instructions)
