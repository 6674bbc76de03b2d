"""The register of the laws: every promise that the kit can check, under a stable id."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure_conformance.parts import PARTS, Part

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from perdure_conformance.bench import Bench

LawFunction: TypeAlias = Callable[..., Awaitable[None]]

DIRECTED_TIMEOUT = 30.0
"""How long a law may take, in seconds: a store that hangs is a failed law, on a slow machine too."""


@dataclass(frozen=True, slots=True)
class Law:
    """One promise, and the test of it.

    Attributes:
        id: Its stable name.
        sentence: What the store promises.
        area: The module that it stands in.
        function: The test; takes a `Bench`, and a case if the law has `cases`.
        parts: The stores that it is about; `()` stands for all three.
        needs: The capabilities that switch it on; each of `parts` must declare them.
        promise: The number of the promise in section 2 of the contract, or `None`.
        methods: The contract methods that name it in their docstrings, such as `sessions.append`.
        since: The version of the kit that it came in with.
        timeout: How long it may take, in seconds.
        cases: Makes the strategy that draws its cases, for a law that is tried on many.
        examples: How many cases are drawn.
    """

    id: str
    sentence: str
    area: str
    function: LawFunction
    parts: tuple[str, ...]
    needs: tuple[str, ...] = ()
    promise: int | None = None
    methods: tuple[str, ...] = ()
    since: str = "0.1"
    timeout: float = DIRECTED_TIMEOUT
    cases: Callable[[], SearchStrategy[Any]] | None = None
    examples: int = 0


_laws: dict[str, Law] = {}


def add(law: Law) -> None:
    """Enter a law into the register.

    Raises:
        ValueError: Its id is taken.
    """
    if law.id in _laws:
        raise ValueError(f"two laws have the id {law.id!r}: in {_laws[law.id].area} and in {law.area}")
    _laws[law.id] = law


def law(
    id: str, *, parts: Sequence[Part] = (), methods: Sequence[str] = (), **more: Any
) -> Callable[[LawFunction], LawFunction]:
    """Enter a test as the law of this id; the test's docstring is the promise, in one sentence.

    Args:
        id: The stable name.
        parts: The stores that it is about.
        methods: The contract methods whose docstrings name it.
        **more: The other fields of `Law`.
    """

    def enter(function: LawFunction) -> LawFunction:
        names = tuple(part.name for part in parts)
        add(Law(id, _sentence(function), _area(function), function, names, methods=tuple(methods), **more))
        return function

    return enter


def law_of_each(
    id: str, *, parts: Sequence[Part] = PARTS, methods: Sequence[str] = (), **more: Any
) -> Callable[[LawFunction], LawFunction]:
    """Enter a test once for each part, as `<part>-<id>`.

    Args:
        id: The end of the stable names.
        parts: The stores that promise it; the test gets the part behind the bench.
        methods: The verbs of the parts (`make`, `read`, ...) whose methods name it in their docstrings.
        **more: The other fields of `Law`.
    """

    def enter(function: LawFunction) -> LawFunction:
        for part in parts:
            named = tuple(f"{part.name}.{part.verbs[verb]}" for verb in methods if verb in part.verbs)
            bound = _bind(function, part)
            names = (part.name,)
            add(Law(f"{part.name}-{id}", _sentence(function), _area(function), bound, names, methods=named, **more))
        return function

    return enter


def _bind(function: LawFunction, part: Part) -> LawFunction:
    async def of_part(bench: Bench, *case: Any) -> None:
        await function(bench, part, *case)

    of_part.__dict__.update(__wrapped__=function, part=part)
    return of_part


def _sentence(function: LawFunction) -> str:
    return " ".join((function.__doc__ or "").split())


def _area(function: LawFunction) -> str:
    return str(getattr(function, "__module__", "")).rpartition(".")[2]


def all_laws() -> tuple[Law, ...]:
    """Return every law, in the order of areas and then as written."""
    package = importlib.import_module("perdure_conformance.laws")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(sorted(_laws.values(), key=lambda law: law.area))
