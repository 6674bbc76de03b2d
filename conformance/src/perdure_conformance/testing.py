"""The class by which a test suite holds its own store to the laws."""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from perdure import AgentStore
from perdure_conformance.laws.register import Law
from perdure_conformance.profiles import PROFILES
from perdure_conformance.runner import Outcome, run_law
from perdure_conformance.target import Place, Target

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure_conformance.resolve import Named


SEED = 0
"""What laws draw their cases by in a test suite: the same ones each time."""


class OpenerError(TypeError):
    """The opener of a test class does not do what the kit needs; the message says what."""


class StoreConformance(ABC):
    """Subclass it in a test module, and pytest runs one test for each law. It needs no plugin for async tests.

        class TestMyStore(StoreConformance):
            def opener(self, place):
                return perdure.open_store(f"mystore:{place.directory}/data", clock=place.clock)

    Attributes:
        only: The ids of the laws to try; `None`: all.
        reopens: Whether the opener finds the data of a place again while this process lives.
        namespaces: Whether the opener heeds `place.namespace`.
        limits: Whether the opener heeds `place.max_record`.
        processes: Whether another process finds the data of a place, by importing this class and calling its opener.
        profile: How much each law tries: the name of a profile of the command, of which rounds and time do not count here.
    """

    only: ClassVar[tuple[str, ...] | None] = None
    reopens: ClassVar[bool] = True
    namespaces: ClassVar[bool] = True
    limits: ClassVar[bool] = True
    processes: ClassVar[bool] = True
    profile: ClassVar[str] = "quick"

    @abstractmethod
    def opener(self, place: Place) -> AgentStore | Awaitable[AgentStore]:
        """Open the store at a place: empty the first time, the same data when the same place is asked for again.

        Args:
            place: Where; it has a `name` and a `directory` of its own. Pass on its `clock`, and its `namespace` and
                `max_record` unless the class says that the opener does not heed them.

        Returns:
            The bundle of stores, or an awaitable of it such as `perdure.open_store(...)`.
        """

    def raw_damage(self, place: Place) -> None:
        """Spoil what is stored at a closed place, beyond reading. Override it to have the laws about damage run."""
        raise NotImplementedError

    def kill_server(self, place: Place) -> None:
        """Kill the server of a place as `kill -9` does, and return when it serves again. Override it where there is a server."""
        raise NotImplementedError

    def newer_schema(self, place: Place) -> Callable[[], None] | None:
        """Mark what is stored at a closed place as a newer release's, and return what takes the mark back, or `None`.

        Override it to have the law about newer schemas run.
        """
        raise NotImplementedError

    def power_loss(self, place: Place) -> Callable[[], Callable[[], None]]:
        """Begin to note what a place syncs, before it is first opened. Override it to have power loss tested.

        Returns:
            What is called at the instant when the power goes, while the store is open. It returns what drops, when the
            store is closed, all that was not synced at that instant.
        """
        raise NotImplementedError

    def target(self) -> Target:
        """Return what the kit tests."""
        own = type(self)
        return Target(
            own.__name__,
            self._open,
            url=self._url if self.processes and "<locals>" not in own.__qualname__ else None,
            reopens=self.reopens,
            namespaces=self.namespaces,
            limits=self.limits,
            damage=self._helper("raw_damage"),
            kill_server=self._helper("kill_server"),
            newer_schema=self._helper("newer_schema"),
            power_loss=self._helper("power_loss"),
        )

    def _helper(self, name: str) -> Any:
        """Return an optional method if the author wrote it."""
        return None if getattr(type(self), name) is getattr(StoreConformance, name) else getattr(self, name)

    def test_law(self, law: Law) -> None:
        """Try one law; the kit's pytest plugin calls it for each."""
        check_law(self.target(), law, profile=self.profile)

    async def _open(self, place: Place, clock: Clock) -> AgentStore:
        opened: Any = self.opener(place)
        if inspect.isawaitable(opened):
            opened = await opened
        if not isinstance(opened, AgentStore):
            raise OpenerError(f"opener must return an AgentStore or an awaitable of one, not a {type(opened).__name__}")
        if opened.clock is not clock:
            await opened.close()
            raise OpenerError("opener must pass on the clock of its place: clock=place.clock")
        return opened

    def _url(self, place: Place) -> str:
        own = type(self)
        where = {"name": place.name, "directory": str(place.directory), "namespace": place.namespace}
        return f"class:{inspect.getfile(own)}:{own.__qualname__}:{json.dumps(where)}"


def open_by_class(owner: type[StoreConformance], text: str) -> Awaitable[AgentStore]:
    """Open the place that another process named, as that process's class does."""
    where: dict[str, str] = json.loads(text)
    place = Place(where["name"], Path(where["directory"]), namespace=where["namespace"])
    return owner().target().opener(place, place.clock)


def check_law(target: Target, law: Law, *, profile: str = "quick", named: Named | None = None) -> None:
    """Try a law in a test of pytest: fail with how it failed, skip with why it did not run.

    Args:
        target: The store under test.
        law: The law.
        profile: How much it tries.
        named: What names the store to the command; `None`: nothing does.
    """
    import pytest

    from perdure_conformance.reports.failures import replay_command
    from perdure_conformance.reports.text import failure_text

    effort = PROFILES[profile]
    verdict = run_law(target, law, seed=SEED, examples=effort.examples if law.cases else None, points=effort.points)
    if verdict.outcome is Outcome.FAILED:
        replay = f"pytest -k {law.id}" if named is None else replay_command(named.text, law.id, profile, SEED)
        pytest.fail(failure_text(verdict, replay), pytrace=False)
    if verdict.outcome is not Outcome.PASSED:
        pytest.skip(f"{verdict.outcome}: {verdict.message}")
