"""Many processes on one directory, and processes that are killed."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure_file.journal import FileJournal

pytestmark = pytest.mark.anyio

# Appends, replaces and deletes at random, and tells of each before it begins and after it was acknowledged.
STORM = """
import random
chance = random.Random(int(sys.argv[2]))
async def main():
    journal = FileJournal(DIRECTORY)
    await journal.open()
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        name = f"s{chance.randrange(3)}"
        found = await journal.read(key(name))
        version = 0 if found is None else found.version
        kind = chance.choice(["append"] * 8 + ["replace", "delete"]) if version else "append"
        label = b'"%d-%s"' % (number, b"x" * chance.choice([1, 50, 20000]))
        if kind == "append":
            operation = append(name, label, label, expected=version, first=number * 1000000)
        elif kind == "replace":
            operation = Replace(key(name), found.count // 2, (label,), Head(), version, AT)
        else:
            operation = Delete(key(name), version)
        print("begin", name, kind, version, number, flush=True)
        (answer,) = await journal.write([operation])
        print("done", name, kind, answer, number, flush=True)
asyncio.run(main())
"""


def label(item: bytes) -> int:
    return int(item[1:].partition(b"-")[0])


class Model:
    """What a killed writer has said: for each key what must be there, and what may be there instead."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[int, list[int]]] = {}
        self.begun: tuple[str, tuple[int, list[int]]] | None = None

    def hear(self, line: str) -> None:
        word, name, kind, version, number = line.split()
        if word == "done":
            assert self.begun is not None
            name, state = self.begun
            assert kind == "delete" or state[0] == int(version)
            self.states[name], self.begun = state, None
            return
        old, items = self.states.get(name, (0, []))
        assert int(version) == old
        if kind == "delete":
            self.begun = (name, (0, []))
        elif kind == "replace":
            self.begun = (name, (old + 1, [*items[: len(items) // 2], int(number)]))
        else:
            self.begun = (name, (old + 1 if old else int(number) * 1000000, [*items, int(number), int(number)]))


async def kill_in_a_storm(start: Callable[..., Any], root: Path, op: Any, rounds: int) -> None:
    model = Model()
    for seed in range(rounds):
        child = start(STORM, str(seed))
        assert child.stdout.readline() == "ready\n", child.communicate()
        # Numbers begin anew with each writer, and so must the state that they are compared with.
        patience = random.Random(seed).random() * 0.3
        until = time.monotonic() + patience
        while time.monotonic() < until:
            line = child.stdout.readline()
            assert line, child.communicate()
            model.hear(line)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            if line.endswith("\n"):
                model.hear(line)
        child.wait()
        journal = FileJournal(root, on_torn_write=lambda _: None)
        await journal.open()
        assert list((root / "default/temporary").iterdir()) == []
        for name in ("s0", "s1", "s2"):
            found = await op.read(journal, name)
            actual = (0, []) if found is None else (found.version, [label(item) for item in found.items])
            allowed = [model.states.get(name, (0, []))]
            if model.begun is not None and model.begun[0] == name:
                allowed.append(model.begun[1])
            assert actual in allowed, (seed, name)
            model.states[name] = actual
        model.begun = None
        await journal.close()


async def test_what_was_acknowledged_survives_ten_kills(start: Callable[..., Any], root: Path, op: Any) -> None:
    await kill_in_a_storm(start, root, op, 10)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_what_was_acknowledged_survives_two_hundred_kills(start: Callable[..., Any], root: Path, op: Any) -> None:
    await kill_in_a_storm(start, root, op, 200)


# Eight of these run on one session. Each says what it was told, and the versions must tell one story.
RACE = """
import random
chance = random.Random(int(sys.argv[2]))
async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    journal = FileJournal(DIRECTORY, busy_timeout=60)
    await journal.open()  # all at once, in a directory that is not there yet
    for number in range(25):
        found = await journal.read(key("s"))
        version = 0 if found is None else found.version
        kind = chance.choice(["append"] * 7 + ["replace"] * 2 + ["delete"]) if version else "append"
        item = b'{"from":"%s-%d"}' % (sys.argv[2].encode(), number)
        first = 10**6 * (int(sys.argv[2]) * 100 + number + 1)
        if kind == "append":
            operation = append("s", item, expected=version, first=first)
        elif kind == "replace":
            operation = Replace(key("s"), found.count - 1 if found.count else 0, (item,), Head(), version, AT)
        else:
            operation = Delete(key("s"), version)
        try:
            (answer,) = await journal.write([operation])
        except VersionConflictError:
            continue
        print(kind, version, answer, item.decode(), flush=True)
    await journal.close()
asyncio.run(main())
"""


async def test_eight_processes_on_one_session_with_replace_and_delete_write_one_history(
    start: Callable[..., Any], root: Path, op: Any
) -> None:
    children = [start(RACE, str(number)) for number in range(8)]
    for child in children:
        assert child.stdout.readline() == "ready\n", child.communicate()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    ended = [(*child.communicate(timeout=100), child.returncode) for child in children]
    assert [(error, code) for _, error, code in ended] == [("", 0)] * 8
    told = [line.split() for output, _, _ in ended for line in output.splitlines()]
    # Each version is left at most once: by who wrote the next one, or deleted it.
    left = [version for _, version, _, _ in told if version != "0"]
    assert len(left) == len(set(left))
    made = {answer: (kind, version, item) for kind, version, answer, item in told if kind != "delete"}
    assert len(made) == len([kind for kind, *_ in told if kind != "delete"])
    journal = FileJournal(root)
    await journal.open()
    found = await op.read(journal, "s")
    expected: list[str] = []
    chain = []
    version = str(found.version) if found else "0"
    while version != "0":
        kind, version, item = made[version]
        chain.append((kind, item))
    for kind, item in reversed(chain):
        expected = [*(expected[:-1] if kind == "replace" else expected), item]
    assert [item.decode() for item in found.items] == expected if found else expected == []
    assert len(told) > 25
    await journal.close()
