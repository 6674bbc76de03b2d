"""The plugin, found by its entry point."""

from __future__ import annotations

import subprocess
import sys

import pytest

INSTALLED = """
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from perdure import Agent, observers, open_store
from perdure.models import ScriptedModel

async def main():
    async with open_store("memory:") as store:
        agent = Agent(model=ScriptedModel(["one", "two"]), store=store)
        await agent.session("s").send("before there is a provider")
        await observers.catch_up()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
        trace.set_tracer_provider(provider)
        await agent.session("s").send("and after")

asyncio.run(main())
"""


def test_the_installed_plugin_reports_to_the_global_provider_also_if_it_is_set_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PERDURE_OBSERVERS_OFF", raising=False)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", INSTALLED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    names = ran.stdout.split("\n")
    assert (names.count("invoke_agent agent"), names.count("chat scripted")) == (1, 1)
