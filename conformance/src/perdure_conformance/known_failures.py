"""Known failures: laws that a store is known to break, each with its reason, a link and a day on which the excuse ends."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class KnownFailure(BaseModel):
    """One law that a store is known to break.

    Attributes:
        law: The id of the law.
        reason: Why it is broken.
        link: Where that is followed up.
        expires: The last day on which it is excused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    law: str
    reason: str = Field(min_length=1)
    link: str = Field(min_length=1)
    expires: date


class _Listed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    failure: list[KnownFailure] = []


class KnownFailuresError(ValueError):
    """The file of known failures cannot be used; the message says where and why."""


def read_known_failures(file: Path, laws: Iterable[str]) -> dict[str, KnownFailure]:
    """Read a file of known failures (TOML, one table `[[failure]]` for each law).

    Args:
        file: The file.
        laws: The ids of all laws.

    Returns:
        The known failures by law.

    Raises:
        KnownFailuresError: It is not there, is no TOML, lacks something, or names an unknown law or one law twice.
    """
    try:
        listed = _Listed.model_validate(tomllib.loads(file.read_text(encoding="utf-8"))).failure
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise KnownFailuresError(f"{file}: {place}: {first['msg']}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise KnownFailuresError(f"{file}: {error}") from error
    known: dict[str, KnownFailure] = {}
    names = frozenset(laws)
    for failure in listed:
        if failure.law not in names:
            raise KnownFailuresError(f"{file}: there is no law {failure.law!r}")
        if failure.law in known:
            raise KnownFailuresError(f"{file}: {failure.law!r} stands there twice")
        known[failure.law] = failure
    return known
