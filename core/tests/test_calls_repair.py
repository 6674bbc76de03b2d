"""The repair of calls and results: every call one result behind it, nothing else changed, and the second time nothing at all."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.interchange import repair_calls
from perdure.interchange.calls import MISSING_RESULT


def said(role: str, text: str = "", *calls: str, answers: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": text}
    if calls:
        message["tool_calls"] = [{"id": call, "name": "t", "arguments": {}} for call in calls]
    if answers is not None:
        message["tool_call_id"] = answers
    return {"v": 1, "kind": "message", "message": message}


def problems(records: list[dict[str, Any]]) -> list[str]:
    """What a provider would refuse: found by walking over what a model sees."""
    seen = [record["message"] for record in records if record.get("kind") in ("message", "summary")]
    found: list[str] = []
    place = 0
    while place < len(seen):
        message = seen[place]
        place += 1
        wanted = sorted(call["id"] for call in message.get("tool_calls", ()))
        got = []
        while place < len(seen) and seen[place]["role"] == "tool":
            got.append(seen[place]["tool_call_id"])
            place += 1
        if wanted != sorted(got):
            found.append(f"calls {wanted}, results {got}")
    return found


def test_stale_and_doubled_results_are_set_aside_and_missing_ones_are_added() -> None:
    """B100."""
    records = [
        said("assistant", "", "c1", "c2"),
        said("tool", "one", answers="c1"),
        said("tool", "stale", answers="c0"),
        said("tool", "again", answers="c1"),
        said("assistant", ""),
        said("user", "go on"),
    ]
    made = repair_calls(records)
    assert [record["message"]["content"] for record in made.value] == [
        *("", "one", MISSING_RESULT, "stale", "again", "", "go on"),
    ]
    assert [record["kind"] for record in made.value] == ["message"] * 3 + ["unmatched-result"] * 2 + ["message"] * 2
    assert [(note.where, note.outcome) for note in made.notes] == [
        *(("records[0]", "repaired"), ("records[2]", "repaired"), ("records[3]", "repaired")),
    ]
    assert problems(made.value) == []
    assert repair_calls(made.value).value == made.value
    assert repair_calls(made.value).notes == ()


def test_a_late_result_is_moved_to_its_call() -> None:
    records = [
        said("assistant", "", "c1"),
        said("user", "still there?"),
        said("tool", "late", answers="c1"),
        said("assistant", "Done."),
    ]
    assert [record["message"]["content"] for record in repair_calls(records).value] == [
        *("", "late", "still there?", "Done."),
    ]


def test_an_id_that_is_used_again_belongs_to_the_last_call_of_it() -> None:
    records = [said("assistant", "", "c1"), said("assistant", "", "c1"), said("tool", "second", answers="c1")]
    made = repair_calls(records).value
    assert [record["message"]["content"] for record in made] == ["", MISSING_RESULT, "", "second"]


def test_what_is_right_stays_as_it_is() -> None:
    records = [
        said("user", "hi"),
        said("assistant", "", "c1", "c1", "c2"),
        said("tool", "b", answers="c2"),
        {"kind": "else", "n": 1},
        said("tool", "a", answers="c1"),
        said("tool", "a2", answers="c1"),
        said("assistant", "bye"),
    ]
    assert repair_calls(records).value == records
    assert repair_calls(records).notes == ()


IDS = st.sampled_from(["a", "b", "c"])
RECORDS = st.lists(
    st.one_of(
        st.builds(lambda text: said("user", text), st.text(max_size=3)),
        st.builds(lambda ids: said("assistant", "x", *ids), st.lists(IDS, max_size=3)),
        st.builds(lambda call: said("tool", "r", answers=call), IDS),
        st.just({"kind": "else"}),
    ),
    max_size=12,
)


@given(RECORDS)
def test_any_records_come_out_right_and_stay_so(records: list[dict[str, Any]]) -> None:
    made = repair_calls(records)
    assert problems(made.value) == []
    assert repair_calls(made.value).value == made.value
    assert bool(made.notes) == (made.value != records)
    kept = [record for record in made.value if record.get("message", {}).get("metadata") != {"repaired": True}]
    assert len(kept) == len(records)
    others = [record for record in records if record.get("message", {}).get("role") != "tool"]
    assert [record for record in kept if record.get("message", {}).get("role") != "tool"] == others
