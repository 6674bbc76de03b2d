"""The chat as somebody uses it: a real terminal (a pty), real keys, real kills."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure import open_store

FILES = ("assistant.py", "chat.py", "terminal.py")
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Screen:
    """A chat in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self._terminal, inner = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "chat.py"],
            cwd=folder,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            preexec_fn=lambda: os.login_tty(inner),  # noqa: PLW1509  # reason: makes Ctrl-C a signal; no thread runs here
        )
        os.close(inner)
        self.text = ""
        self._seen = 0

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def type(self, line: str) -> None:
        self.press(f"{line}\n".encode())

    def wait_for(self, text: str) -> str:
        """Wait until a text is on the screen, behind what was waited for before; return what came up to it."""
        deadline = time.monotonic() + 60
        while (found := self.text.find(text, self._seen)) < 0:
            assert select.select([self._terminal], [], [], deadline - time.monotonic())[0], f"{text!r}: {self.text}"
            try:
                piece = os.read(self._terminal, 4096)
            except OSError:  # Linux: nobody has the other side any more
                piece = b""
            assert piece, f"it ended before {text!r}: {self.text}"
            self.text += piece.decode(errors="replace").replace("\r\n", "\n")
        before, self._seen = self.text[self._seen : found], found + len(text)
        return before

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(60)

    def leave(self) -> int:
        self.press(CTRL_D)
        return self._process.wait(60)

    def wait(self) -> int:
        return self._process.wait(60)

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        os.close(self._terminal)


Start = Callable[[], Screen]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        shutil.copy(Path(__file__).with_name(name), tmp_path)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    screens: list[Screen] = []

    def start() -> Screen:
        screens.append(Screen(folder))
        screens[-1].wait_for("forgets all.\n")
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def said(folder: Path) -> list[str]:
    """Return what the conversation holds."""

    async def load() -> list[str]:
        async with open_store(f"sqlite:{folder / 'chat.db'}") as store:
            transcript = await store.sessions.load("terminal")
            return [] if transcript is None else [record["message"]["content"] for record in transcript.records]

    return asyncio.run(load())


def notes(folder: Path) -> list[str]:
    file = folder / "notes.txt"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def test_an_answer_is_streamed_and_a_restart_goes_on(folder: Path, start: Start) -> None:
    screen = start()
    screen.wait_for("> ")
    screen.type("hello, world")
    screen.wait_for("You said: hello, world\n> ")
    assert screen.leave() == 0
    screen = start()
    screen.wait_for("> hello, world\nYou said: hello, world\n> ")
    assert screen.leave() == 0
    assert said(folder) == ["hello, world", "You said: hello, world"]


def test_ctrl_c_stops_an_answer_and_keeps_the_conversation(folder: Path, start: Start) -> None:
    screen = start()
    screen.type("hello")
    screen.wait_for("You said: hello\n> ")
    screen.type("count 100000")
    screen.wait_for("1 2 3")
    screen.press(CTRL_C)
    screen.wait_for("(stopped; the conversation is as it was before)\n> ")
    screen.type("and now?")
    screen.wait_for("You said: and now?\n> ")
    assert screen.leave() == 0
    assert said(folder) == ["hello", "You said: hello", "and now?", "You said: and now?"]


def test_a_tool_asks_in_the_terminal(folder: Path, start: Start) -> None:
    screen = start()
    screen.type("note milk")
    screen.wait_for('note{"text": "milk"}\nMay this run? [y/n] ')
    assert notes(folder) == []
    screen.type("y")
    screen.wait_for("[note ...]\nnoted: milk\n> ")
    screen.type("note bread")
    screen.wait_for("May this run? [y/n] ")
    screen.type("n")
    screen.wait_for("Why not? ")
    screen.type("We have some.")
    screen.wait_for('"note": "We have some."}\n> ')
    assert screen.leave() == 0
    assert notes(folder) == ["milk"]


def test_what_waits_for_a_decision_is_asked_again_after_a_kill(folder: Path, start: Start) -> None:
    screen = start()
    screen.type("note milk")
    screen.wait_for("May this run? [y/n] ")
    screen.kill()
    screen = start()
    screen.wait_for("(going on where we stopped)\n")
    screen.wait_for("May this run? [y/n] ")
    screen.press(CTRL_C)
    screen.wait_for("/retry asks again)\n> ")
    screen.type("hello?")
    screen.wait_for("your message was not taken)\n")
    screen.wait_for("May this run? [y/n] ")
    screen.type("y")
    screen.wait_for("noted: milk\n> ")
    assert screen.leave() == 0
    assert notes(folder) == ["milk"]
    assert said(folder)[0] == "note milk"
    assert "hello?" not in said(folder)


def test_a_killed_answer_is_made_again(folder: Path, start: Start) -> None:
    screen = start()
    screen.type("count 100000")
    screen.wait_for("1 2 3")
    screen.kill()
    screen = start()
    screen.wait_for("(going on where we stopped)\n1 2 3")
    screen.press(CTRL_C)
    screen.wait_for("(stopped; the conversation is as it was before)\n> ")
    assert screen.leave() == 0
    assert said(folder) == []


STUBBORN = """

async def answer(request):
    yield TextDelta("listen ... ")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            yield TextDelta("no! ")
"""


AWAY = """

async def answer(request):
    yield TextDelta("let me ")
    if Path("away").exists():
        raise ConnectionError("the provider is away")
    yield ModelResponse(text="let me see")  # without streaming the rest
"""


def with_model(folder: Path, model: str) -> str:
    """Put another model into the assistant; return the assistant as it was."""
    assistant = folder / "assistant.py"
    whole = assistant.read_text(encoding="utf-8")
    assistant.write_text(whole.replace("\n\ndef make_agent", f"{model}\n\ndef make_agent"), encoding="utf-8")
    return whole


def test_a_turn_that_failed_is_tried_again_or_dropped(folder: Path, start: Start) -> None:
    with_model(folder, AWAY)
    away = folder / "away"
    away.touch()
    screen = start()
    screen.type("hello")
    screen.wait_for("let me \n(ConnectionError: the provider is away; /retry or /drop)\n> ")
    screen.type("/retry")
    screen.wait_for("(ConnectionError: the provider is away; /retry or /drop)\n> ")
    away.unlink()
    screen.type("/retry")
    screen.wait_for("let me \n> ")
    away.touch()
    screen.type("and now?")
    screen.wait_for("/retry or /drop)\n> ")
    screen.type("/drop")
    screen.wait_for("(dropped)\n> ")
    assert screen.leave() == 0
    assert said(folder) == ["hello", "let me see"]
    assert (folder / "chat.log").read_text(encoding="utf-8").count("run failed") == 3


def test_a_second_ctrl_c_leaves_what_does_not_stop_and_a_start_goes_on_with_it(folder: Path, start: Start) -> None:
    whole = with_model(folder, STUBBORN)
    screen = start()
    screen.type("hello")
    screen.wait_for("listen ... ")
    screen.press(CTRL_C)
    screen.wait_for("no! ")
    screen.press(CTRL_C)
    assert screen.wait() == -signal.SIGINT
    (folder / "assistant.py").write_text(whole, encoding="utf-8")
    screen = start()
    screen.wait_for("(going on where we stopped)\nYou said: hello\n> ")
    assert screen.leave() == 0


def test_commands_and_keys_at_the_prompt(folder: Path, start: Start) -> None:
    screen = start()
    screen.wait_for("> ")
    screen.press(CTRL_C)
    screen.wait_for("(Ctrl-D leaves)\n> ")
    screen.type("red \x9b31m and\x07 bell")  # what a model says cannot steer the terminal
    screen.wait_for("You said: ")
    assert screen.wait_for("bell\n> ") == "red 31m and "
    screen.type("/drop")
    screen.wait_for("(there is nothing to drop)\n> ")
    screen.type("/clear")
    screen.wait_for("(forgotten)\n> ")
    assert screen.leave() == 0
    assert said(folder) == []
