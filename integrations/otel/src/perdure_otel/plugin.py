"""The installed observer: it reports to the global providers, whenever the application sets them."""

from typing import Any, Final

from perdure.backend import hookimpl
from perdure_otel.telemetry import Telemetry

_telemetry: Final = Telemetry()


@hookimpl
def perdure_event(event: Any) -> None:
    """Report an event."""
    _telemetry.report(event)
