"""The ways to reach a server of which too little is known, one after the other."""

from dataclasses import dataclass, replace

from multitap.config import HttpServer, ServerConfig
from multitap.events import Phase
from multitap.upstream.session import Era
from multitap.wire.wire import Flooded, NotSpoken, WireClosed


@dataclass(frozen=True, slots=True)
class Approach:
    config: ServerConfig
    era: Era | None
    """None: find out."""


def first_approach(config: ServerConfig, remembered: Era | None) -> Approach:
    """What to try first."""
    if config.era != "auto":
        remembered = Era(config.era)
    if isinstance(config, HttpServer) and config.transport == "http":
        config = config.model_copy(update={"transport": "streamable-http"})
    if isinstance(config, HttpServer) and config.transport == "sse":
        remembered = Era.HANDSHAKE  # the transport is older than the other era
    return Approach(config, remembered)


def next_approach(
    failed: Approach, exc: BaseException, phase: Phase, wanted: ServerConfig
) -> Approach | None:
    """What to try after `failed`, or None when nothing else can help."""
    if phase is not Phase.HANDSHAKE:
        return None
    if isinstance(exc, NotSpoken) and isinstance(failed.config, HttpServer):
        undecided = wanted.transport == "http" and failed.config.transport == "streamable-http"
        if not undecided:
            return None
        return Approach(failed.config.model_copy(update={"transport": "sse"}), Era.HANDSHAKE)
    if isinstance(exc, Flooded):
        return None
    if isinstance(exc, WireClosed) and failed.era is None and wanted.era == "auto":
        # servers on the oldest SDKs end when they are asked anything before the handshake
        return replace(failed, era=Era.HANDSHAKE)
    return None
