"""What a plugin tells the kit: helpers by URL, which reach the laws that need them."""

import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.contracts.urls import StoreURL
from perdure_conformance.resolve import TargetError, find_target
from perdure_conformance.target import Place, Target, overwrite_files

PLUGIN = """
from pydantic import BaseModel
from perdure.backend import journal_hooks

PERDURE_CONTRACT = 1

class Options(BaseModel):
    colour: str = "red"

perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks("nowhere:Journal")

ASKED = []
DONE = []

def conformance_helpers(url):
    ASKED.append(url)
    if url.path == "bad":
        return {"backup": print}
    if url.path == "worse":
        raise RuntimeError("no helpers today")
    return {"damage": lambda url: DONE.append(("damage", url)), "newer_schema": lambda url: DONE.append(("newer", url))}
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a plugin for the scheme `helped`, and return its module."""
    folder = tmp_path / "site"
    info = folder / "perdure_helped-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: perdure-helped\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[perdure.stores]\nhelped = helped_plugin\n")
    (folder / "helped_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(folder))
    yield __import__("helped_plugin")
    del sys.modules["helped_plugin"]


def test_helpers_get_the_url_of_the_place_with_its_options_checked(plugin: Any, tmp_path: Path) -> None:
    target = Target.from_url("helped:{dir}/data?colour=blue")
    (asked,) = plugin.ASKED
    assert asked.path == "{dir}/data"  # so that it can tell whether each place is fresh
    assert target.damage is not None
    assert target.newer_schema is not None
    target.damage(Place("p1", tmp_path))
    target.newer_schema(Place("p1", tmp_path, namespace="other"))
    (first, damaged), (second, marked) = plugin.DONE
    assert (first, damaged.path, damaged.namespace) == ("damage", f"{tmp_path}/data", "default")
    assert (second, marked.namespace, marked.options.colour) == ("newer", "other", "blue")
    assert (target.kill_server, target.power_loss) == (None, None)


def test_without_a_fresh_directory_the_namespace_tells_whose_data_it_is(plugin: Any, tmp_path: Path) -> None:
    target = Target.from_url("helped:everywhere")
    assert target.damage is not None
    target.damage(Place("p1", tmp_path))
    assert plugin.DONE[0][1] == StoreURL.parse("helped:everywhere?namespace=p1-default")


@pytest.mark.usefixtures("plugin")
def test_what_the_caller_gives_goes_before() -> None:
    assert Target.from_url("helped:{dir}/data", damage=overwrite_files).damage is overwrite_files


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(("url", "told"), [("helped:bad", "offers 'backup'"), ("helped:worse", "no helpers today")])
def test_a_hook_that_is_wrong_is_told(url: str, told: str) -> None:
    with pytest.raises(TargetError, match=told):
        find_target(url)


def test_without_a_hook_files_are_overwritten_where_each_place_has_a_directory() -> None:
    assert Target.from_url("nosuch:{dir}/data").damage is overwrite_files
    assert Target.from_url("nosuch:data").damage is None


@pytest.mark.parametrize(
    ("url", "offered"),
    [
        ("memory:{place}", set[str]()),
        ("file:{dir}/data", {"damage", "newer_schema", "power_loss"}),
        ("file:data", {"damage", "newer_schema"}),  # a loss of power would take more than the namespace
        ("sqlite:{dir}/agent.db", {"damage", "newer_schema"}),
        ("sqlite:/tmp/{place}.db", {"damage", "newer_schema"}),
        ("sqlite:agent.db", set[str]()),  # somebody's own: nothing in it is the kit's to spoil
        ("sqlite::memory:", set[str]()),
        ("redis://localhost", {"damage", "newer_schema"}),  # a server that it did not start is not killed
        ("redis+cluster://localhost", {"damage", "newer_schema"}),
    ],
)
def test_our_plugins_offer_what_they_can_do_to_data_of_the_kit_alone(url: str, offered: set[str]) -> None:
    target = Target.from_url(url)
    names = ("damage", "kill_server", "newer_schema", "power_loss")
    assert {name for name in names if getattr(target, name) is not None} == offered
