"""Each contract method states its promises under fixed headings, and names the laws that check them."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from perdure import AgentStore
from perdure.backend import append_once
from perdure.contracts.approvals import ApprovalStore
from perdure.contracts.checkpoints import CheckpointStore
from perdure.contracts.sessions import SessionStore
from perdure_conformance.laws import all_laws

HEADINGS = ("Args", "Returns", "Raises", "Atomic", "Durable", "Concurrent", "Retry", "Cancelled", "Laws")
STORES = {"sessions": SessionStore, "checkpoints": CheckpointStore, "approvals": ApprovalStore}
METHODS = {
    f"{part}.{name}": getattr(store, name)
    for part, store in STORES.items()
    for name in vars(store)
    if not name.startswith("_") and callable(getattr(store, name))
}
BUNDLE = {f"bundle.{name}": getattr(AgentStore, name) for name in ("decide", "delete_session", "prune", "write")}
CHECKED = {**METHODS, **BUNDLE, "append_once": append_once}
"""What names its laws: the methods of the contract, and what is made of them."""

LAWS = all_laws()


def named(method: Callable[..., Any]) -> list[str]:
    """Return the law ids that a docstring names."""
    text = inspect.getdoc(method) or ""
    laws = re.search(r"^Laws: (.*)\Z", text, re.DOTALL | re.MULTILINE)
    assert laws is not None, "the docstring has no Laws: line, or not at its end"
    return [name.strip() for name in laws[1].split(",")]


@pytest.mark.parametrize("name", METHODS)
def test_a_contract_method_states_everything_in_order(name: str) -> None:
    text = inspect.getdoc(METHODS[name]) or ""
    found = [heading for heading in re.findall(r"^([A-Z][a-z]+):", text, re.MULTILINE) if heading in HEADINGS]
    parameters = [one for one in inspect.signature(METHODS[name]).parameters if one != "self"]
    assert found == [heading for heading in HEADINGS if heading != "Args" or parameters]
    assert [one for one in parameters if not re.search(rf"^    {one}: ", text, re.MULTILINE)] == []


@pytest.mark.parametrize("name", CHECKED)
def test_a_method_names_its_laws(name: str) -> None:
    assert named(CHECKED[name]) == sorted(one.id for one in LAWS if name in one.methods)


@pytest.mark.parametrize("name", CHECKED)
def test_a_method_has_laws(name: str) -> None:
    assert [one for one in LAWS if name in one.methods]


def test_laws_name_methods_that_exist() -> None:
    assert [one.id for one in LAWS if set(one.methods) - set(CHECKED)] == []
