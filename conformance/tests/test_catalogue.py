"""Every entry of the catalogue has a law that is about it, and a planted store which that law catches."""

import pytest
from conformance.tests.catalogue import CATALOGUE, Entry
from conformance.tests.faults.every import FAULTS

from perdure_conformance.laws import all_laws

LAWS = {law.id for law in all_laws()}
STORES = {fault.name: fault for fault in FAULTS}
EACH = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: f"{entry.chapter}-{entry.fault}".replace(" ", "-"))


@EACH
def test_an_entry_names_laws_and_planted_stores_that_exist(entry: Entry) -> None:
    assert entry.laws
    assert entry.stores
    assert [name for name in entry.laws if name not in LAWS] == []
    assert [name for name in entry.stores if name not in STORES] == []


@EACH
def test_one_of_its_laws_catches_one_of_its_stores(entry: Entry) -> None:
    assert [name for name in entry.stores if set(STORES[name].laws) & set(entry.laws)]


def test_entries_are_told_apart() -> None:
    names = [(entry.chapter, entry.fault) for entry in CATALOGUE]
    assert len(names) == len(set(names))


def test_every_planted_store_stands_in_the_catalogue() -> None:
    assert set(STORES) - {name for entry in CATALOGUE for name in entry.stores} == set()
