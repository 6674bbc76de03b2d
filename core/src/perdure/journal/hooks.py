"""The three hooks of a plugin whose backend is one journal."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from perdure.contracts.hookspecs import hookimpl
from perdure.journal.contract import Journal
from perdure.journal.stores import JournalApprovals, JournalCheckpoints, JournalSessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.contracts.resources import Resources
    from perdure.contracts.urls import StoreURL

    S = TypeVar("S")
    Hook: TypeAlias = Callable[[StoreURL, Resources], S]


def journal_hooks(
    factory: Callable[[StoreURL], Journal] | type[Journal] | str, *, takes_host: bool = False
) -> tuple[Hook[JournalSessions], Hook[JournalCheckpoints], Hook[JournalApprovals]]:
    """Make the hooks of a journal backend; the three stores of a URL share one journal.

        perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks(
            "perdure_sqlite.journal:SqliteJournal"
        )

    Args:
        factory: Makes the journal of a URL, not yet open: a function, a `Journal` class with `from_url`, or either of
            them as text `module:name`, which is imported at the first use, so that the plugin imports no driver.
        takes_host: Whether a URL may name a host or a user. If not, `sqlite://agent.db`, where a path was meant, is
            refused before the factory sees it.
    """

    def journal_of(url: StoreURL, resources: Resources) -> Journal:
        if not takes_host:
            url.path_only()
        return resources.get(("journal", factory, url), lambda: _make(factory, url))

    @hookimpl
    def perdure_session_store(url: StoreURL, resources: Resources) -> JournalSessions:
        return JournalSessions(journal_of(url, resources))

    @hookimpl
    def perdure_checkpoint_store(url: StoreURL, resources: Resources) -> JournalCheckpoints:
        return JournalCheckpoints(journal_of(url, resources))

    @hookimpl
    def perdure_approval_store(url: StoreURL, resources: Resources) -> JournalApprovals:
        return JournalApprovals(journal_of(url, resources))

    return perdure_session_store, perdure_checkpoint_store, perdure_approval_store


def _make(factory: Any, url: StoreURL) -> Journal:
    target = pkgutil.resolve_name(factory) if isinstance(factory, str) else factory
    journal = getattr(target, "from_url", target)(url)
    if not isinstance(journal, Journal):
        raise TypeError(f"{factory} made something of type {type(journal).__name__}, where a Journal is needed")
    return journal
