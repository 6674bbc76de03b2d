"""OpenTelemetry for perdure: spans and metrics of turns, requests of models, calls of tools, and calls of stores.

Wherever this is installed, `perdure_otel.plugin` is found by its entry point and reports to the global providers. To
report to others, make a `Telemetry` and register it: `perdure.observers.register(Telemetry(tracer_provider=...))`.
"""

from perdure_otel.telemetry import Telemetry

__all__ = ["Telemetry"]
