"""What the conformance kit opens. Nothing but the kit imports this module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import lmdb

from perdure_conformance.target import Place, Target
from perdure_lmdb.environment import SCHEMA, SCHEMA_KEY


def target() -> Target:
    """Return the store at a fresh directory, and a way to try what becomes of a newer release's data."""
    return dataclasses.replace(Target.from_url("lmdb:{dir}/data", name="lmdb"), newer_schema=_newer_schema)


def _newer_schema(place: Place) -> Callable[[], None]:
    def mark(schema: int) -> None:
        with lmdb.open(str(place.directory / "data")) as opened, opened.begin(write=True) as transaction:
            transaction.put(SCHEMA_KEY, b"%d" % schema)

    mark(SCHEMA + 1)
    return lambda: mark(SCHEMA)
