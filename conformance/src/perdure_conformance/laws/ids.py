"""Promise 10: ids never merge, listing gives them back exactly, and what breaks the rule is refused by all alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from perdure import safe_id
from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import InvalidIdError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds, raises
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, SESSIONS, Part, Stores, request
from perdure_conformance.values import LARGE

CONFUSABLE = (
    *("a", "A", "aa", "aA", "a_", "a-", "_a", "-a", "_", "-", "__", "--", "a_b", "a-b", "A_B", "ab", "a__b"),
    *("s1", "s10", "s100", "S1", "0", "00", "1", "01", "10", "1e3", "1000", "-1", "-0", "0x10"),
    *("null", "None", "true", "True", "NaN", "con", "CON", "nul", "aux", "COM1", "default", "DEFAULT"),
    *("sessions", "runs", "approvals", "run", "__proto__", "x--", "x--a", "_sqlite", "sqlite_master"),
    *("i", "I", "K", "k", "ss", "SS", "x" * 127, "x" * 128, "x" * 127 + "y", "X" * 128, "x" * 127 + "X"),
)
"""Ids that file systems, databases and patterns take for one another."""

BAD_IDS: tuple[Any, ...] = (
    *(
        "",
        " ",
        ".",
        "..",
        "../x",
        "..\\x",
        "/etc/x",
        "C:x",
        "a/b",
        "a\\b",
        "a:b",
        "a b",
        "a%",
        "a*",
        "a?",
        "[a]",
        "a|b",
    ),
    *(
        "a\0b",
        "\0",
        "a\n",
        "\na",
        "a\r",
        "a\t",
        " a",
        "a ",
        "a,b",
        "a;b",
        "a'",
        'a"',
        "a'; DROP TABLE x; --",
        "a#b",
        "a~",
    ),
    *(
        "é",
        "e\u0301",
        "日本",
        "\uff41",
        "\u0131",
        "\u017f",
        "\u212a",
        "😀",
        "\ud800",
        "a\u200b",
        "a@b",
        "a+b",
        "a=b",
        "$a",
        "{a}",
    ),
    *("x" * 129, "x" * 1000, "x" * 10_000, None, 1, 1.0, True, b"a", ["a"], ("a",)),
)
"""What no rule of ids takes for a session."""


@law_of_each("confusable-ids-stay-apart", promise=10, methods=["make"])
async def confusable_ids_stay_apart(bench: Bench, part: Part) -> None:
    """Two different ids are two different keys, however alike they look to a file system or a database."""
    for name in CONFUSABLE:
        await part.make(bench.store, part.key(name), {"of": name})
    for name in CONFUSABLE:
        seen = await part.read(bench.store, part.key(name))
        equal(seen and seen.values, ({"of": name},), f"what is stored under {name!r}")


@law_of_each("listing-gives-exact-ids", needs=("list",), promise=10, methods=["list"])
async def listing_gives_exact_ids(bench: Bench, part: Part) -> None:
    """The listing gives back exactly the ids that were given."""
    for name in CONFUSABLE:
        await part.make(bench.store, part.key(name))
    listed = await part.ids(bench.store, limit=9)
    equal(sorted(listed), sorted(part.key(name) for name in CONFUSABLE), "the listed ids, sorted")


@law_of_each("delete-removes-one-id", needs=("delete",), promise=10, methods=["delete"])
async def delete_removes_one_id(bench: Bench, part: Part) -> None:
    """A delete removes the one key that it names, and none that begins alike or looks alike."""
    names = ("s1", "s10", "S1", "a", "A", "a_", "a-", "aa", "_a", "a_b", "x" * 127, "x" * 128)
    values = {name: {"of": name} | ({"text": "x" * LARGE} if name == "s10" else {}) for name in names}
    for name, value in values.items():
        await part.make(bench.store, part.key(name), value)
    for gone, name in enumerate(names, 1):
        equal(await part.delete(bench.store, part.key(name)), True, f"deleting {name!r}")
        for index, other in enumerate(names):
            seen = await part.read(bench.store, part.key(other))
            expected = None if index < gone else (values[other],)
            equal(seen and seen.values, expected, f"what is stored under {other!r} after {name!r} was deleted")


@law("checkpoints-run-and-session-of-one-name-are-two", parts=[CHECKPOINTS], promise=10, methods=["checkpoints.append"])
async def run_and_session_of_one_name(bench: Bench) -> None:
    """The turn journal of session `a` and that of the run `a.run` are two keys."""
    await CHECKPOINTS.make(bench.store, "a", {"of": "session"})
    equal(await CHECKPOINTS.read(bench.store, "a.run"), None, "a.run while only a exists")
    await CHECKPOINTS.make(bench.store, "a.run", {"of": "run"})
    equal(await CHECKPOINTS.values(bench.store, "a"), [{"of": "session"}], "what a holds")
    equal(await CHECKPOINTS.values(bench.store, "a.run"), [{"of": "run"}], "what a.run holds")
    equal(await CHECKPOINTS.ids(bench.store), ["a", "a.run"], "the listing of a and a.run")


@law("approvals-ids-of-one-run-stay-apart", parts=[APPROVALS], promise=10, methods=["approvals.create"])
async def approval_ids_of_one_run(bench: Bench) -> None:
    """Calls, steps, turns and attempts of one conversation are different approvals, up to 200 characters of id."""
    tails = ("turn-1.s0.c0", "turn-1.s0.c00", "turn-1.s0.c1", "turn-1.s0.c10", "turn-10.s0.c0", "turn-1.S0.c0")
    more = ("turn-1.s0.c0.d1", "turn-1.s0.c0.d10", "turn-1.s00.c0", "turn-1", "turn-1.", "turn-1..", "turn-1_s0_c0")
    ids = [f"s1.{tail}" for tail in (*tails, *more)] + ["s1." + "y" * 197, "s1." + "y" * 196 + "z", "s1." + "Y" * 197]
    for one in ids:
        await bench.store.approvals.create(request(one, {"of": one}, run_id="s1.turn-1"))
    for one in ids:
        found = await bench.store.approvals.get(one)
        equal(found and found.arguments, {"of": one}, f"the arguments of {one}")
    equal(sorted(await APPROVALS.ids(bench.store, run_id="s1.turn-1")), sorted(ids), "the listing of the run")


@law("sessions-bad-ids-are-refused", parts=[SESSIONS], promise=10, methods=["sessions.load"])
async def bad_session_ids(bench: Bench) -> None:
    """Every method refuses an id that breaks the rule, names the rule and the way out, and creates nothing."""
    sessions = bench.store.sessions
    for bad in BAD_IDS:
        error = await raises(InvalidIdError, f"load of {bad!r:.60}", sessions.load, bad)
        holds(
            "128" in str(error) and "safe_id" in error.hint, f"the refusal of {bad!r:.60} names no rule or no way out"
        )
        await raises(InvalidIdError, f"append to {bad!r:.60}", sessions.append, bad, [{"n": 1}])
        await raises(InvalidIdError, f"replace of {bad!r:.60}", sessions.replace, bad, [], expected_version=None)
        await raises(InvalidIdError, f"delete of {bad!r:.60}", sessions.delete, bad)
    if sessions.capabilities.list:
        equal(await SESSIONS.ids(bench.store), [], "the listing after all refusals")


@law("checkpoints-bad-keys-are-refused", parts=[CHECKPOINTS], promise=10, methods=["checkpoints.load"])
async def bad_checkpoint_keys(bench: Bench) -> None:
    """Every method refuses a key that is neither a session id nor such a name followed by `.run`."""
    checkpoints, head = bench.store.checkpoints, CheckpointHead("in-progress")
    more = ("a.b", "a.run.run", ".run", "a.RUN", "a.run ", "a.run\n", "a.", "a.turn-1", "x" * 129 + ".run", "a/b.run")
    for bad in (*BAD_IDS, *more):
        what = f"{bad!r:.60}"
        await raises(InvalidIdError, f"load of {what}", checkpoints.load, bad)
        await raises(InvalidIdError, f"append to {what}", checkpoints.append, bad, [], expected_version=0, head=head)
        await raises(InvalidIdError, f"replace of {what}", checkpoints.replace, bad, [], expected_version=1, head=head)
        await raises(InvalidIdError, f"delete of {what}", checkpoints.delete, bad)
    equal(await CHECKPOINTS.ids(bench.store), [], "the listing after all refusals")


@law("approvals-bad-ids-are-refused", parts=[APPROVALS], promise=10, methods=["approvals.get"])
async def bad_approval_ids(bench: Bench) -> None:
    """Every method refuses an approval id that breaks the rule, and create does for every id that it is given."""
    approvals = bench.store.approvals
    bad_ids = [bad for bad in BAD_IDS if not isinstance(bad, str) or len(bad) != 129]
    for bad in (*bad_ids, ".a", "." + "x" * 10, "x" * 201, "a.b\n", "a.b/c"):
        what = f"{bad!r:.60}"
        calls: list[Callable[..., Awaitable[Any]]] = [approvals.get, approvals.delete, approvals.expire]
        for call in calls:
            await raises(InvalidIdError, f"{call.__name__} of {what}", call, bad)
        await raises(InvalidIdError, f"decide of {what}", approvals.decide, bad, approved=True)
        await raises(InvalidIdError, f"cancel of {what}", approvals.cancel, bad, reason="no")
        await raises(InvalidIdError, f"create with the id {what}", approvals.create, replace(request(), id=bad))
        await raises(InvalidIdError, f"create with the run id {what}", approvals.create, replace(request(), run_id=bad))
    equal(await APPROVALS.ids(bench.store), [], "the listing after all refusals")


@law("sessions-safe-ids-are-ids", parts=[SESSIONS], promise=10, methods=["sessions.append"])
async def safe_ids_are_ids(bench: Bench) -> None:
    """`safe_id` makes a valid id of any text, a different one of each, and leaves valid ids alone."""
    texts = [bad for bad in BAD_IDS if isinstance(bad, str)] + ["a", "A", "s1", "x" * 128, "x--a"]
    ids = {text: safe_id(text) for text in texts}
    equal(len(set(ids.values())), len(texts), "how many different ids so many texts have")
    equal(ids["s1"], "s1", "the safe id of a valid id")
    for text, one in ids.items():
        await bench.store.sessions.append(one, [{"of": text}] if "\ud83d" not in text else [], expected_version=0)
    for text, one in ids.items():
        equal(
            await SESSIONS.values(bench.store, one), [{"of": text}], f"what is stored under the safe id of {text!r:.60}"
        )


@law("sessions-id-of-128-characters-works", parts=[SESSIONS], promise=10, methods=["sessions.append"])
async def id_of_128_characters(bench: Bench) -> None:
    """An id of 128 characters works in every method, and so do the keys and approvals of its conversation."""
    store: Stores = bench.store
    name = "aB3_-" * 25 + "xyz"
    await store.sessions.append(name, [{"n": 1}])
    equal(await SESSIONS.values(store, name), [{"n": 1}], "what is stored under an id of 128 characters")
    if "checkpoints" in store:
        for key in (name, f"{name}.run"):
            await CHECKPOINTS.make(store, key, {"n": 2})
            equal(await CHECKPOINTS.values(store, key), [{"n": 2}], "a turn journal of 128 characters")
    if "approvals" in store:
        await APPROVALS.make(store, APPROVALS.key(name), {"n": 3})
        listed = await store.approvals.list(session_id=name)
        equal([one.arguments for one in listed.items], [{"n": 3}], "the approvals of a session of 128 characters")
