"""`perdure copy`, `export` and `import`, as a user types them."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import termios
from array import array
from pathlib import Path

import pytest
from core.tests.command_line import Perdure
from core.tests.moving_world import differences, everything, fill
from core.tests.test_claude_transcripts import CHAT as CLAUDE
from core.tests.test_claude_transcripts import data
from core.tests.test_cli_ground import without_stream
from core.tests.test_openai_chat import CHAT as OPENAI

from perdure import open_store, safe_id

CODEC = """
from perdure.at_rest.encryption import Encryption
from perdure.at_rest.key_ring import KeyRing

codec = Encryption(KeyRing([bytes(range(32))]))
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled")
    asyncio.run(_fill(f"sqlite:{directory / 'a.db'}"))
    return directory


async def _fill(url: str) -> None:
    async with open_store(url) as store:
        await fill(store)


@pytest.fixture
def perdure(filled: Path, tmp_path: Path) -> Perdure:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    return Perdure(tmp_path)


def same(one: str, other: str) -> None:
    """Two stores hold the same; turn journals may be at other versions, which a chain of copies moves."""

    async def compare() -> None:
        async with open_store(one) as first, open_store(other) as second:
            held = await everything(second, turn_versions=False)
            assert differences(held, await everything(first, turn_versions=False)) == []

    asyncio.run(compare())


def test_copy_tells_what_it_did_and_does_it_once(perdure: Perdure, tmp_path: Path) -> None:
    ran = perdure("copy", "sqlite:a.db", "file:b", code=0)
    assert ran.out == "9 conversations copied (25 records, 3 approvals); 0 were there already.\n"
    assert ran.err == ""
    assert perdure.json("copy", "sqlite:a.db", "file:b") == {
        "copied": 0,
        "present": 9,
        "records": 0,
        "approvals": 0,
        "not_copied": {},
        "complete": True,
    }
    same(f"sqlite:{tmp_path}/a.db", f"file:{tmp_path}/b")


def test_copy_names_what_differs_and_exits_with_1(perdure: Perdure) -> None:
    perdure("copy", "sqlite:a.db", "sqlite:b.db", code=0)
    perdure("delete", "talk", "--yes", "--store", "sqlite:b.db")
    chat = json.dumps({"session_id": "talk", "messages": OPENAI})
    perdure("import", "-", "--store", "sqlite:b.db", given=chat, code=0)
    ran = perdure("copy", "sqlite:a.db", "sqlite:b.db", code=1)
    assert "not copied: talk: " in ran.out
    assert ran.out.endswith("Nothing that was there was overwritten. Mend what is named, and run it again.\n")


def test_copy_shows_a_bar_on_a_terminal_alone(perdure: Perdure) -> None:
    shown = perdure.on_terminal("copy", "sqlite:a.db", "sqlite:b.db")
    assert shown.code == 0
    assert "copying" in shown.out
    assert "/9" in shown.out
    assert "9 conversations copied" in shown.out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("sqlite:a.db", "sqlite:a.db"), "both are the same store"),
        (("sqlite:none.db", "sqlite:b.db"), "none.db does not exist"),
        (("memory:x", "sqlite:b.db"), "keeps nothing"),
        (("sqlite:a.db", "redis://user:s3cret@127.0.0.1:1/0"), "127.0.0.1:1"),
        (("sqlite:a.db", "sqlite:b.db", "--wait", "soon"), "is no duration"),
        (("sqlite:a.db", "sqlite:b.db", "--to-codec", "nothing"), "names no codec"),
    ],
)
def test_copy_refuses_what_cannot_be(perdure: Perdure, arguments: tuple[str, ...], problem: str) -> None:
    ran = perdure("copy", *arguments, code=2)
    assert problem in " ".join(ran.err.split())
    assert "s3cret" not in ran.err + ran.out


def test_copy_encrypts_and_decrypts(perdure: Perdure, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    (tmp_path / "keys.py").write_text(CODEC)
    perdure("copy", "sqlite:a.db", "file:secret", "--to-codec", "keys:codec", code=0)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "secret").rglob("*") if path.is_file())
    assert b"message 1" not in stored
    perdure("copy", "file:secret", "sqlite:c.db", PERDURE_CODEC="keys:codec", code=0)
    perdure("copy", "file:secret", "sqlite:plain.db", "--from-codec", "keys:codec", "--to-codec", "none", code=0)
    same(f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/plain.db")
    assert perdure("ls", "--store", "sqlite:plain.db", code=0).out.count("talk") == 1
    assert perdure("copy", "file:secret", "sqlite:d.db", code=2).err.startswith("perdure copy: ")


def test_export_and_import_of_everything(perdure: Perdure, tmp_path: Path) -> None:
    ran = perdure("export", "all.jsonl", "--store", "sqlite:a.db", code=0)
    assert (ran.out, ran.err) == ("", "Exported 9 conversations (25 records, 3 approvals) to all.jsonl.\n")
    assert (tmp_path / "all.jsonl").stat().st_mode & 0o077 == 0
    before = (tmp_path / "all.jsonl").read_bytes()
    assert "is there already" in perdure("export", "all.jsonl", "--store", "sqlite:a.db", code=2).err
    assert "does not exist" in perdure("export", "all.jsonl", "--overwrite", "--store", "sqlite:no.db", code=2).err
    assert (tmp_path / "all.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    assert perdure("import", "all.jsonl", "--store", "file:b", code=0).out.startswith("9 conversations imported")
    assert perdure.json("import", "all.jsonl", "--store", "file:b")["present"] == 9
    same(f"sqlite:{tmp_path}/a.db", f"file:{tmp_path}/b")
    piped = perdure("export", "--store", "sqlite:a.db", "--session", "talk", code=0).out
    assert perdure("import", "-", "--store", "sqlite:c.db", given=piped, code=0).out.startswith("1 conversations")
    torn = before[: len(before) // 2].decode()
    ran = perdure("import", "-", "--store", "sqlite:d.db", given=torn, code=1)
    assert "the last line of the export is missing" in ran.out


def test_export_leaves_alone_what_is_no_regular_file(perdure: Perdure, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "/dev/null"):
        ran = perdure("export", name, "--overwrite", "--store", "sqlite:a.db", code=2)
        assert f"{name} is no regular file" in ran.err
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    perdure("export", "link.jsonl", "--store", "sqlite:a.db", code=0)
    assert (tmp_path / "link.jsonl").readlink() == Path("real.jsonl")
    assert (tmp_path / "real.jsonl").stat().st_size > 0
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    perdure("export", "loop.jsonl", "--store", "sqlite:a.db", code=0)
    assert (tmp_path / "loop.jsonl").stat().st_size > 0


def test_export_to_a_closed_standard_output_is_no_success(perdure: Perdure) -> None:
    ran = without_stream(perdure, "export --store sqlite:a.db", ">&-")
    assert (ran.returncode, ran.stderr) == (2, "perdure export: standard output is closed. Name a FILE.\n")


def test_export_says_how_a_conversation_is_named(perdure: Perdure, tmp_path: Path) -> None:
    ran = perdure("export", "talk", "talk.jsonl", "--store", "sqlite:a.db", code=2)
    assert "there is one FILE, and 'talk' was taken for it. Name a conversation by --session talk.jsonl." in ran.err
    ran = perdure("export", "-", "--session", "ann@example.org", "--store", "sqlite:a.db", code=1)
    assert f"not exported: {safe_id('ann@example.org')}: there is no such conversation" in ran.err
    assert [name for name in ("talk", "talk.jsonl") if (tmp_path / name).exists()] == []


def test_import_finds_out_the_format(perdure: Perdure, tmp_path: Path) -> None:
    (tmp_path / "claude.jsonl").write_bytes(b"".join(data(CLAUDE)) + b'{"torn')
    result = perdure.json("import", "claude.jsonl", "--store", "sqlite:b.db", "--scope", "acme", code=1)
    assert (result["sessions"], [note["outcome"] for note in result["notes"]]) == (
        ["b3f0"],
        ["left-out", "kept", "kept", "kept"],
    )
    (tmp_path / "snapshot.jsonl").write_bytes(b"".join(data(CLAUDE[2:])))  # begins with one, as many do
    assert perdure.json("import", "snapshot.jsonl", "--store", "sqlite:s.db")["sessions"] == ["b3f0"]
    (tmp_path / "chat.json").write_text(json.dumps(OPENAI, indent=2))
    err = perdure("import", "chat.json", "--store", "sqlite:b.db", code=1).err
    assert "conversation 1 names no session id. Give one: session_id=ID, or --session ID." in err
    (tmp_path / "number.json").write_text('{"session_id": "five", "messages": 5}\n')
    for form in ("auto", "perdure", "claude"):
        err = perdure("import", "number.json", "--format", form, "--store", "sqlite:b.db", code=1).err
        assert "Is the file of this format?" in err
    ran = perdure("import", "chat.json", "--session", "chat", "--store", "sqlite:b.db", code=0)
    assert "session chat" in ran.out
    assert "instructions belong to the agent" in ran.out
    (tmp_path / "bad.jsonl").write_text('{"role":"user","content":"1"}\n{"role":\n{"role":"user","content":"2"}\n')
    ran = perdure("import", "bad.jsonl", "--session", "bad", "--store", "sqlite:b.db", code=1)
    assert "line 2 (byte 30) is not JSON" in ran.err
    ran = perdure("import", "bad.jsonl", "--session", "bad", "--recover", "--store", "sqlite:b.db", code=1)
    assert "line 2 (byte 30)" in ran.out
    (tmp_path / "empty").touch()
    ran = perdure("import", "empty", "--store", "sqlite:c.db", code=2)
    assert "the file is empty, and so does not tell its format. Give --format, or another file." in ran.err
    assert not (tmp_path / "c.db").exists()
    assert "No such file" in perdure("import", "none.jsonl", "--store", "sqlite:b.db", code=2).err


@pytest.mark.parametrize("form", ["auto", "openai", "claude", "perdure"])
def test_import_refuses_what_is_nested_too_deep(perdure: Perdure, tmp_path: Path, form: str) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000 + "\n")
    ran = perdure("import", "deep.json", "--format", form, "--store", "sqlite:b.db", code=1)
    assert ran.err.startswith("perdure import: line 1 ")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    torn = perdure("import", "deep.json", "--format", form, "--store", "sqlite:b.db", code=1)
    assert "torn" not in torn.out + torn.err
    (tmp_path / "deep.json").write_text('[{"role":"user","content":' + "[" * 300 + "]" * 300 + "}]")
    assert "nested deeper" in perdure("import", "deep.json", "--session", "deep", "--store", "sqlite:c.db", code=1).out


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("first", ["[1\n", '{"uuid":1}\n', '{"type":"export","format":"perdure","v":1}\n'])
def test_import_can_be_interrupted_while_it_waits_for_more(perdure: Perdure, first: str, by: signal.Signals) -> None:
    reader, writer = os.pipe()
    os.write(writer, first.encode())

    def is_read() -> bool:
        left = array("i", [0])
        fcntl.ioctl(reader, termios.FIONREAD, left)
        return left[0] == 0

    ran = perdure.interrupted("import", "-", "--store", "sqlite:b.db", when=is_read, by=by, reads=reader)
    os.close(reader)
    os.close(writer)
    assert (ran.code, ran.out) == (128 + by, "perdure import: interrupted\n")


def test_export_to_other_formats(perdure: Perdure) -> None:
    lines = perdure("export", "--format", "openai", "--store", "sqlite:a.db", code=0)
    assert len(lines.out.splitlines()) == 8
    assert "waiting: the turn: a turn has not ended" in lines.err
    ran = perdure("export", "--format", "claude", "--session", "long", "--store", "sqlite:a.db", code=0)
    assert [json.loads(line)["type"] for line in ran.out.splitlines()][:2] == ["user", "assistant"]
    assert "Name it: --session ID" in perdure("export", "--format", "claude", "--store", "sqlite:a.db", code=2).err
    assert "no such conversation" in perdure("export", "--session", "no", "--store", "sqlite:a.db", code=1).err
    assert "needs a FILE" in perdure("export", "--json", "--store", "sqlite:a.db", code=2).out
