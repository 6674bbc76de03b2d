"""Ids: what each rule takes and refuses, and the way from any text to a session id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import safe_id
from perdure.contracts import ids
from perdure.errors import InvalidIdError

GOOD: dict[Callable[[object], str], list[str]] = {
    ids.check_session_id: ["a", "A-z_0", "-", "_", "x" * 128, "x--" + "0" * 64],
    ids.check_run_id: ["s.turn-1", "a..b", "-", "x" * 160, "a."],
    ids.check_approval_id: ["s.turn-1.s0.c0.d1", "x" * 200],
    ids.check_checkpoint_key: ["s", "s.run", "x" * 128 + ".run"],
    ids.check_namespace: ["default", "a-b_C", "x" * 64],
}
BAD: dict[Callable[[object], str], list[Any]] = {
    ids.check_session_id: ["", "a.b", "a b", "a/b", "..", "ä", "a\n", "\na", "a\0", "x" * 129, None, 5, b"a", ["a"]],
    ids.check_run_id: ["", ".", ".a", "a/b", "a\n", "x" * 161, None],
    ids.check_approval_id: ["", ".a", "a:b", "a\n", "x" * 201, 1.5],
    ids.check_checkpoint_key: ["", "s.runs", "s.run.run", ".run", "s.turn-1", "x" * 129, None],
    ids.check_namespace: ["", "a.b", "x" * 65, "a\n", None],
}


@pytest.mark.parametrize(("check", "value"), [(check, value) for check, values in GOOD.items() for value in values])
def test_good(check: Callable[[object], str], value: str) -> None:
    assert check(value) == value


@pytest.mark.parametrize(("check", "value"), [(check, value) for check, values in BAD.items() for value in values])
def test_bad(check: Callable[[object], str], value: Any) -> None:
    with pytest.raises(InvalidIdError) as caught:
        check(value)
    assert caught.value.rule in str(caught.value)
    assert caught.value.hint in str(caught.value)


def test_a_subclass_of_str_is_refused() -> None:
    class Name(str):
        __slots__ = ()

    with pytest.raises(InvalidIdError):
        ids.check_session_id(Name("a"))


def test_the_way_out_is_named() -> None:
    with pytest.raises(InvalidIdError, match="safe_id"):
        ids.check_session_id("user@example.com")


@pytest.mark.parametrize("text", ["", "user@example.com", "a\n", "\ud800", "x" * 129, "x--", "x--" + "0" * 64, "ä"])
def test_safe_ids_of_other_texts(text: str) -> None:
    made = safe_id(text)
    assert made == ids.check_session_id(made)
    assert made.startswith("x--")
    assert made != text
    assert len(made) == 67


@given(st.text())
def test_safe_ids_are_valid_and_stable(text: str) -> None:
    made = safe_id(text)
    assert ids.check_session_id(made) == made == safe_id(text)
    assert (made == text) is (not made.startswith("x--"))


@given(st.text(max_size=5), st.text(max_size=5))
def test_safe_ids_never_merge(one: str, other: str) -> None:
    assert (safe_id(one) == safe_id(other)) is (one == other)


def test_a_safe_id_is_not_one_of_another_text() -> None:
    """A text that is somebody's safe id is mapped again, so that nobody can name another's session by it."""
    assert safe_id(safe_id("user@example.com")) != safe_id("user@example.com")


@pytest.mark.parametrize(("key", "conversation"), [("s", "s"), ("s.run", "s"), ("s.turn-1.s0.c0", "s"), ("a..b", "a")])
def test_the_conversation_of_a_key(key: str, conversation: str) -> None:
    assert ids.conversation_of(key) == conversation
