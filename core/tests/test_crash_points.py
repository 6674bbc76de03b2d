"""Turns that die, or lose their store, at every write: whoever comes next finishes them as if nothing had happened."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from core.tests.crash_world import NO_POLICY, Say, Scenario, User, World, away_from, result_text, survive, told_of

from perdure import ToolCall
from perdure_conformance.interception import OUTCOMES, Died, Interception, at

pytestmark = pytest.mark.anyio

DEATHS = ("die-before", "die-after")
AWAY = "away"


def call(call_id: str, name: str, value: str) -> ToolCall:
    names = {"look": "what", "read": "what", "pay": "to", "book": "room", "wire": "to", "sign": "paper"}
    return ToolCall(id=call_id, name=name, arguments={names[name]: value})


def unknown(name: str, value: str) -> tuple[str, str]:
    """The results of a call that is not repeated: its own, or that its outcome is unknown."""
    text = "whether attempt 1 of this call had an effect is not known, and it was not repeated"
    return result_text(name, call("", name, value).arguments), text


def refused(name: str, value: str) -> tuple[str, str]:
    """The results of a call whose second attempt is refused."""
    text = f'{{"status": "rejected", "tool": "{name}", "outcome": "unknown; the call was not repeated"}}'
    return result_text(name, call("", name, value).arguments), text


PAIR = [call("c1", "pay", "ann"), call("c2", "book", "7")]
SCENARIOS = {
    "text": Scenario(["Hello."]),
    "tools": Scenario(
        [[call("c1", "look", "a"), call("c2", "pay", "ann"), call("c3", "read", "b"), call("c4", "book", "7")], "Done."]
    ),
    "gated": Scenario(
        [
            [call("c1", "wire", "ann"), call("c2", "sign", "x"), call("c3", "wire", "ann"), call("c4", "pay", "bob")],
            [call("c5", "wire", "eve")],
            "Done.",
        ],
        decisions={"c1": Say(arguments={"to": "zoe"}), "c3": Say(approved=False, note="too much")},
        results={
            "c1": ("wire {'to': 'zoe'}",),
            "c3": ('{"status": "rejected", "tool": "wire", "note": "too much"}',),
        },
    ),
    "fail": Scenario([PAIR, "Done."], policy="fail", results={"c1": unknown("pay", "ann"), "c2": unknown("book", "7")}),
    "ask-yes": Scenario([[*PAIR, call("c3", "wire", "eve")], "Done."], policy="ask"),
    "ask-no": Scenario(
        [PAIR, "Done."],
        policy="ask",
        doubt=False,
        results={"c1": refused("pay", "ann"), "c2": refused("book", "7")},
    ),
    "no-policy": Scenario([PAIR, "Done."], policy=NO_POLICY),
    "two-turns": Scenario(
        [[call("c1", "pay", "ann")], "Paid.", [call("c2", "look", "x"), call("c3", "wire", "bob")], "Wired."],
        inputs=("Pay ann.", "Wire bob."),
    ),
}
SMALL = Scenario([[call("c1", "pay", "ann"), call("c2", "wire", "bob")], "Done."])
BACKENDS = ("memory", "sqlite")
USERS: tuple[User, ...] = ("send", "resume", "resolve")


def interception(number: int, outcome: str) -> Interception:
    return away_from(number) if outcome == AWAY else at(number, outcome)


async def crash(world: World, number: int, outcome: str, user: User, *, atomic: bool) -> bool:
    """Run the scenario with one fault and finish it; False if it made fewer writes than that."""
    first = await world.process(interception(number, outcome), atomic=atomic)
    async with told_of(first.interception, f"{outcome} at write {number}, {user}"):
        failure = await survive(first.use(user))
        assert isinstance(failure, Died) == (outcome in DEATHS and len(first.interception.calls) >= number)
        await world.note_crash()
        if outcome == AWAY or isinstance(failure, Died) or number % 2:
            finisher = await world.process(atomic=atomic)
        else:
            finisher = first  # an error is not the end of a process: the same one goes on
        await finisher.use(user)
        await world.check_end()
        world.check_effects()
        if outcome in ("unavailable", "lost", "unknown"):
            # A store that fails once, in a process that lives on, makes no call doubtful, whatever the policy.
            repeated = [key for key, times in Counter(effect.key for effect in world.effects).items() if times > 1]
            assert repeated == []
    return len(first.interception.calls) >= number


async def crash_everywhere(name: str, backend: str, outcome: str, directory: Path, *, atomic: bool, shift: int) -> int:
    """Run a scenario with a fault at write 1, 2, ... until no user makes so many writes; return how many runs had one.

    Each point has one of the users, another one for each shift.
    """
    points = 0
    for number in itertools.count(1):
        async with World(backend, directory, SCENARIOS[name]) as world:
            points += await crash(world, number, outcome, USERS[(number + shift) % len(USERS)], atomic=atomic)
        if points <= number - len(USERS):
            return points
    raise AssertionError


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "steps"])
@pytest.mark.parametrize("outcome", [*OUTCOMES, AWAY])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_turn_survives_a_fault_at_every_write(name: str, outcome: str, atomic: bool, tmp_path: Path) -> None:
    # The short one by every user at every point, the others by one user at each; the soak test has them all.
    for shift in range(len(USERS)) if name == "text" else [atomic + len(outcome)]:
        assert await crash_everywhere(name, "memory", outcome, tmp_path, atomic=atomic, shift=shift) > 3


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "steps"])
@pytest.mark.parametrize(
    "outcome", ["die-after", *(pytest.param(one, marks=pytest.mark.soak) for one in ("die-before", AWAY))]
)
@pytest.mark.parametrize("name", ["text", "tools"])
async def test_a_turn_survives_a_fault_at_every_write_on_sqlite(
    name: str, outcome: str, atomic: bool, tmp_path: Path
) -> None:
    assert await crash_everywhere(name, "sqlite", outcome, tmp_path, atomic=atomic, shift=atomic + len(outcome)) > 3


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "steps"])
@pytest.mark.parametrize("outcome", [*OUTCOMES, AWAY])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_turn_survives_whoever_finishes_it(
    name: str, backend: str, outcome: str, atomic: bool, tmp_path: Path
) -> None:
    for shift in range(len(USERS)):
        assert await crash_everywhere(name, backend, outcome, tmp_path, atomic=atomic, shift=shift) > 3


async def crash_twice(world: World, first: tuple[int, str], second: tuple[int, str], *, atomic: bool) -> bool:
    """Die, die again during the recovery, and finish; False if the recovery made fewer writes than that."""
    dying = await world.process(at(*first), atomic=atomic)
    recovering = await world.process(at(*second), atomic=atomic)
    async with told_of(dying.interception, f"{first}"), told_of(recovering.interception, f"then {second}"):
        await survive(dying.use("resume"))
        await world.note_crash()
        noted = world.may_repeat
        died = isinstance(await survive(recovering.use("resume")), Died)
        assert died == (len(recovering.interception.calls) >= second[0])
        if not died:
            return False
        await world.note_crash()
        twice = noted & world.may_repeat
        world.may_repeat |= noted
        finisher = await world.process(atomic=atomic)
        await finisher.use("resume")
        await world.check_end()
        world.check_effects(twice)
    return True


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "steps"])
@pytest.mark.parametrize(
    ("outcome", "again"),
    [
        pytest.param("die-before", "die-before", marks=pytest.mark.soak),
        ("die-after", "die-after"),
        pytest.param("die-before", "die-after", marks=pytest.mark.soak),
        pytest.param("die-after", "die-before", marks=pytest.mark.soak),
    ],
)
async def test_a_recovery_that_dies_is_recovered(outcome: str, again: str, atomic: bool, tmp_path: Path) -> None:
    points = 0
    for number in range(1, 13):
        for second in itertools.count(1):
            async with World("memory", tmp_path, SMALL) as world:
                if not await crash_twice(world, (number, outcome), (second, again), atomic=atomic):
                    break
            points += 1
    assert points > 50
