"""One turn, run by its owner: ask the model, run its calls, wait for decisions, write each step before the next.

The runner never looks at the last entry alone: `TurnState` says for every call what is recorded, and each loop decides
from that what may happen next. A recorded response is not asked for again, and a recorded result's tool never runs
again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from perdure.contracts.records import decode_object
from perdure.events import TextStreamed
from perdure.models import ModelError, ModelRequest
from perdure.ownership.uninterrupted import foreign, interrupted
from perdure.runtime.messages import Message
from perdure.runtime.results import AWAITING, LIMIT, STOP
from perdure.runtime.tools import ToolArgumentsError
from perdure.runtime.transcript.joined_messages import JoinedMessages
from perdure.runtime.turn.asking import ask
from perdure.runtime.turn.calls import Calls
from perdure.runtime.turn.limits import Limits, finish_reason
from perdure.runtime.turn.state import entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.bundle import AgentStore
    from perdure.contracts.records import Record
    from perdure.models import ModelResponse, TextDelta
    from perdure.ownership.owned_journal import OwnedJournal
    from perdure.runtime.agent import Agent
    from perdure.runtime.turn.limits import Spent
    from perdure.runtime.turn.telling import Teller

_NONE: Final = Limits()


class Turn:
    """Runs one turn on a journal that this task owns, up to its end or up to where it must wait."""

    def __init__(
        self,
        agent: Agent,
        store: AgentStore,
        journal: OwnedJournal,
        teller: Teller,
        history: Sequence[Message],
        limits: Sequence[tuple[Limits, Spent]],
    ) -> None:
        """Take what the turn runs on.

        Args:
            agent: Whose turn.
            store: Where it is kept.
            journal: Its journal.
            teller: What it tells of itself, and its state.
            history: The messages before it. The list may grow meanwhile, which the turn does not see.
            limits: What may be spent, each with what was spent before the turn.
        """
        self.agent = agent
        self.store = store
        self.teller = teller
        self.state = teller.state
        self.history = JoinedMessages(history)
        self.calls = Calls(agent, store, journal, teller)
        self._limits = [(limit, before) for limit, before in limits if limit != _NONE]
        self._asking: asyncio.Task[object] | None = None
        self._heard = self._steered = False

    async def advance(self) -> str:
        """Go on until the turn ends or waits.

        Returns:
            How it ended; `awaiting-approval` if it waits, with the undecided approvals in `calls.waiting_for`.
        """
        while True:
            await asyncio.sleep(0)  # a step that waits for nothing, in memory, lets others go on all the same
            step = self.state.steps[-1] if self.state.steps else None
            if step is not None:
                if not await self.calls.finish(step):
                    return AWAITING
                if not step.calls:
                    return STOP
            reason = self._limit_met() or await self._ask_model()
            if reason is not None:
                return reason

    def steer(self) -> None:
        """Have an input that was accepted just now be heard: a request that has brought nothing yet is made again."""
        if self._asking is not None and not self._heard and not self._steered:
            self._steered = True
            self._asking.cancel()

    def _limit_met(self) -> str | None:
        """Return why the turn ends, if a limit is met."""
        if not self._limits:
            return None
        spent = self.state.running(self.store.clock.now())
        for limits, before in self._limits:
            met = limits.met(before + spent)
            if met is not None:
                return finish_reason(met[0])
        return None

    def _seconds_left(self) -> float | None:
        if not self._limits:
            return None
        spent = self.state.running(self.store.clock.now())
        left = [limits.seconds_left(before + spent) for limits, before in self._limits]
        return min((seconds for seconds in left if seconds is not None), default=None)

    # --- the model ---

    async def _ask_model(self) -> str | None:
        """Ask for the next response, and write it; return why the turn ends if no time was left for one."""
        while True:
            inputs = len(self.state.inputs)
            request = ModelRequest(
                messages=JoinedMessages(self.history, *self.state.asking),
                tools=[tool.schema for tool in self.agent.tools.values()],
                instructions=self.agent.instructions,
            )
            left = self._seconds_left()
            try:
                response = await (self._response(request) if left is None else self._response_within(left, request))
            except asyncio.CancelledError as error:
                if interrupted():
                    raise
                if not self._steered:
                    raise ModelError(f"the model {self.agent.model.name} cancelled itself") from error
                continue  # the request is made again, with the new input
            if response is None:
                return LIMIT
            await self.calls.write(self._response_entries(response, inputs))
            return None

    async def _response_within(self, seconds: float, request: ModelRequest) -> ModelResponse | None:
        """Ask the model; `None` if it has not answered in time."""
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                return await self._response(request)
        except TimeoutError:
            if timeout.expired():
                return None
            raise

    async def _response(self, request: ModelRequest) -> ModelResponse:
        """Ask the model, which `steer` may cancel meanwhile."""
        self._heard = self._steered = False
        self._asking = asyncio.current_task()
        try:
            return await foreign(ask(self.agent.model, request, self.store.clock, self._on_delta))
        finally:
            self._asking = None

    def _on_delta(self, delta: TextDelta) -> None:
        self._heard = True
        self.teller.tell(TextStreamed, text=delta.text)

    def _response_entries(self, response: ModelResponse, inputs: int) -> list[Record]:
        """Return the response's entry, which holds what is gated, and at once the answers to calls that cannot run."""
        said = Message("assistant", response.text, tuple(response.tool_calls), metadata=response.metadata)
        # Of bytes, not of the model's objects, which it may go on changing.
        record = decode_object(self.calls.answers.fitting(said.to_record(), "response"), "response")
        gated: list[int] = []
        answers: list[Record] = []
        checked: dict[int, dict[str, Any]] = {}
        step = len(self.state.steps)
        for place, call in enumerate(said.tool_calls):
            tool = self.agent.tools.get(call.name)
            try:
                if tool is None:
                    raise ToolArgumentsError(f"there is no tool {call.name!r}")
                values = tool.check(call.arguments)
            except ToolArgumentsError as error:
                answers.append(self.calls.answers.told(call, step, place, str(error)))
                continue
            if tool.is_gated(call.arguments):
                gated.append(place)
            else:
                checked[place] = values
        self.calls.checked = checked
        usage = response.usage.to_record()
        recorded = entry("model", self.calls.now(), message=record, usage=usage, gated=gated, inputs=inputs)
        return [recorded, *answers]
