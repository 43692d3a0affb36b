"""Starts the recording of spans, as the settings and OpenTelemetry's variables say."""

import os
from collections.abc import Generator
from contextlib import contextmanager, nullcontext

from multitap.config.models import Telemetry
from multitap.telemetry.spans import Spans, is_disabled, sampling


@contextmanager
def open_spans(settings: Telemetry) -> Generator[Spans | None]:
    """While entered, spans are recorded; None if traces are off.

    Raises:
        ConfigError: The extra is missing, or a variable cannot be used.
    """
    if settings.traces == "off" or is_disabled():
        yield None
        return
    from multitap.telemetry.otlp import open_otlp  # noqa: PLC0415 - seldom used

    # OpenTelemetry's own variables can only turn off what the settings turn on
    is_sent = settings.traces == "otlp" and os.environ.get("OTEL_TRACES_EXPORTER") != "none"
    with open_otlp() if is_sent else nullcontext() as sink:
        yield Spans(
            sampling(settings.sample, settings.traces_per_second),
            parent=settings.trace_parent,
            sink=sink,
            injects=os.environ.get("OTEL_PROPAGATORS", "").strip() != "none",
        )
