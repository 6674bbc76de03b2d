"""What a generated test opens its store with. The generator copies it into the test module."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from typing import Any

import perdure
from perdure_conformance.target import Place, located


async def open_url(url: str, place: Place) -> Any:
    """Open the store of a URL at a place."""
    return await perdure.open_store(located(url, place), clock=place.clock)


async def open_object(text: str, place: Place) -> Any:
    """Open the store of `FILE:ATTRIBUTE`, a target or a test class, at a place."""
    file, _, attribute = text.rpartition(":")
    specification = importlib.util.spec_from_file_location("store_under_test", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    found: Any = getattr(module, attribute)
    if callable(found):
        found = found()
    takes_clock = len(inspect.signature(found.opener).parameters) > 1
    opened: Any = found.opener(place, place.clock) if takes_clock else found.opener(place)
    return await opened if inspect.isawaitable(opened) else opened
