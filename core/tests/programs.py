"""What a process does to a conversation, for the tests that try every order of two of them."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perdure import AgentStore
from perdure_conformance.conversation_world import SESSION, ConversationWorld
from perdure_conformance.stepping import has_died

Program = Callable[[ConversationWorld, AgentStore], Coroutine[Any, Any, Any]]
WEEK = timedelta(days=7)


def send(given: str, input_id: str | None = None) -> Program:
    return lambda world, store: world.session(store).send(given, input_id=input_id)


def resume(world: ConversationWorld, store: AgentStore) -> Coroutine[Any, Any, Any]:
    return world.session(store).resume()


def discard(*, force: bool = False) -> Program:
    return lambda world, store: world.session(store).discard_pending(force=force)


def clear(world: ConversationWorld, store: AgentStore) -> Coroutine[Any, Any, Any]:
    return world.session(store).clear()


def delete(*, force: bool = False) -> Program:
    return lambda _, store: store.delete_session(SESSION, force=force)


def prune(_: ConversationWorld, store: AgentStore) -> Coroutine[Any, Any, Any]:
    return store.prune(older_than=WEEK)


def entitle(world: ConversationWorld, store: AgentStore) -> Coroutine[Any, Any, Any]:
    return world.session(store).update_state(lambda state: {**state, "title": "a title"})


async def the_title_is_kept(world: ConversationWorld, outcomes: Mapping[str, Any]) -> None:
    """Check it after B has entitled the conversation."""
    found = await world.fresh().sessions.load(SESSION)
    if not has_died(outcomes["B"]):
        assert found is not None
        assert found.state == {"title": "a title"}


@dataclass(frozen=True)
class Setting:
    """What the two know of each other."""

    same_host: bool = True
    slow_switches: bool = False
    killed: str | None = None
