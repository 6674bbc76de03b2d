"""The hooks of perdure, at the seams only: from a store on, everything is a plain typed method call.

A store plugin is a module that an entry point of the group `perdure.stores` names; the entry's name is the URL scheme.
It has `PERDURE_CONTRACT = 1`, `Options` (a pydantic model of the URL's own options; may be left out) and one hook for
each store that it offers. It imports no driver.
"""

from __future__ import annotations

import pluggy

from perdure.contracts.approvals import ApprovalStore
from perdure.contracts.checkpoints import CheckpointStore
from perdure.contracts.resources import Resources
from perdure.contracts.sessions import SessionStore
from perdure.contracts.urls import StoreURL

CONTRACT = 1
"""The version of the contract between this release and its plugins."""

hookspec = pluggy.HookspecMarker("perdure")
hookimpl = pluggy.HookimplMarker("perdure")
"""Marks a function of a plugin as one of its hooks."""


@hookspec(firstresult=True)
def perdure_session_store(url: StoreURL, resources: Resources) -> SessionStore | None:
    """Return the session store of a URL, not yet open, or `None` if there is none.

    A plain function without input or output: what needs opening is made by `resources.get`, and opened later.

    Args:
        url: The URL, with `options` checked.
        resources: What the three stores of a bundle share.
    """


@hookspec(firstresult=True)
def perdure_checkpoint_store(url: StoreURL, resources: Resources) -> CheckpointStore | None:
    """Return the checkpoint store of a URL; see `perdure_session_store`."""


@hookspec(firstresult=True)
def perdure_approval_store(url: StoreURL, resources: Resources) -> ApprovalStore | None:
    """Return the approval store of a URL; see `perdure_session_store`."""


@hookspec
def perdure_event(event: object) -> None:
    """Take note of a runtime event. For modules of the group `perdure.observers`."""
