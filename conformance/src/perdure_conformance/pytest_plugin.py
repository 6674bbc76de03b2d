"""The pytest plugin: `--store`, and one test for each law of a `StoreConformance`. It imports the kit when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure_conformance.laws.register import Law

STORE_LAWS = Path(__file__).with_name("store_laws.py")
"""The module that `--pyargs perdure_conformance` collects."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the kit."""
    group = parser.getgroup("perdure", "perdure: laws of stores")
    group.addoption(
        "--store",
        action="append",
        default=[],
        metavar="TARGET",
        help="A store to hold to the laws, as `perdure-conformance check` takes it; with --pyargs perdure_conformance.",
    )
    group.addoption(
        "--law", action="append", default=[], metavar="LAW", help="Try this law alone; may be given several times."
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect the kit's own module of tests, whatever the patterns for names of test files are."""
    if file_path != STORE_LAWS:
        return None
    if not parent.config.getoption("store"):
        raise pytest.UsageError("perdure_conformance: name a store: pytest --store URL --pyargs perdure_conformance")
    return pytest.Module.from_parent(parent, path=file_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each law, and for each store of `--store`."""
    if "perdure_store" in metafunc.fixturenames:
        from perdure_conformance.resolve import TargetError, find_target

        try:
            stores = [find_target(text) for text in metafunc.config.getoption("store") or ()]
        except TargetError as error:
            raise pytest.UsageError(f"--store: {error}") from error
        metafunc.parametrize("perdure_store", stores, ids=[store.target.name for store in stores])
        _each_law(metafunc, None)
    elif metafunc.cls is not None and metafunc.function.__name__ == "test_law":
        from perdure_conformance.testing import StoreConformance

        if issubclass(metafunc.cls, StoreConformance):
            check_profile(metafunc.cls.profile)
            _each_law(metafunc, metafunc.cls.only)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an id that names no law before anything is collected: the workers of xdist could not say so."""
    if config.getoption("law"):
        chosen_laws(config.getoption("law"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the laws of `--law` alone, of those too that `law_tests` had made before any option was known."""
    if config.getoption("law"):
        wanted = {None, *(law.id for law in chosen_laws(config.getoption("law")))}
        config.hook.pytest_deselected(items=[item for item in items if _law_of(item) not in wanted])
        items[:] = [item for item in items if _law_of(item) in wanted]


def _each_law(metafunc: pytest.Metafunc, only: Iterable[str] | None) -> None:
    laws = chosen_laws(only)
    metafunc.parametrize("law", laws, ids=[law.id for law in laws])


def _law_of(item: pytest.Item) -> str | None:
    """Return the id of the law that a test tries, `None` for a test of something else."""
    from perdure_conformance.laws.register import Law

    found = getattr(item, "callspec", None)
    law = None if found is None else found.params.get("law")
    return law.id if isinstance(law, Law) else None


def chosen_laws(only: Iterable[str] | None) -> list[Law]:
    """Return the laws of these ids, `None`: all; in the order of the catalogue, which is the same in all workers of xdist.

    Raises:
        pytest.UsageError: An id names no law.
    """
    from perdure_conformance.laws.register import all_laws

    known = {law.id: law for law in all_laws()}
    names = known.keys() if only is None else {*only}
    unknown = sorted(names - known.keys())
    if unknown:
        raise pytest.UsageError(f"there is no law {unknown[0]!r}; `perdure-conformance list` shows all")
    return [law for name, law in known.items() if name in names]


def check_profile(name: str) -> None:
    """Refuse a profile that is none.

    Raises:
        pytest.UsageError: There is none of this name.
    """
    from perdure_conformance.profiles import find_profile

    try:
        find_profile(name)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
