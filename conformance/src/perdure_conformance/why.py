"""Why a law matters: what goes wrong for users of a store that breaks it."""

from __future__ import annotations

from perdure_conformance.laws.register import Law

PROMISES = {
    1: "A version that repeats or stands still lets a writer who slept overwrite what others wrote since.",
    2: "The compare-and-set is the only lock of a conversation: without it two workers run one turn, and effects happen twice.",
    3: "A half-written batch leaves a transcript that no model accepts, or a turn that is neither begun nor done.",
    4: "What was acknowledged is acted upon: an answer was sent, a payment was made. If it is lost, it is done again.",
    5: "A transcript in another order is another conversation: results come before their calls.",
    6: "A value that comes back changed changes what a tool is called with, or makes a model's signature invalid.",
    7: "If callers share objects with the store, a change in memory becomes a change of the record that nobody wrote.",
    8: "Whoever reads 'absent' for 'unreadable' begins anew, over a conversation that is still there.",
    9: "Callers decide by the class of an error whether to try again; a foreign or wrong one makes them lose or double a write.",
    10: "Two ids that meet in one key show one user's conversation to another.",
    11: "A tenant that sees another's keys is a leak; a tenant that deletes them is a loss.",
    12: "A listing that skips keys leaves turns unresumed and conversations unpruned; a read that takes more than was asked for "
    "slows down every turn of a long conversation.",
    13: "A store that answers after it was closed, or from another loop, hangs or mixes up replies in production.",
    14: "A cancelled call is a user who pressed stop: the next call must get its own answer, and no lock may stay.",
}
"""By promise of the contract, section 2."""

AREAS = {
    "approvals": "A lost or changed request asks a person about something else than what will be done.",
    "checkpoints": "The turn journal is how a turn is continued after a crash: what it loses is done again, or never.",
    "compacting": "A compaction rewrites the whole transcript: what it loses no later turn brings back.",
    "decisions": "A decision that is lost, doubled or changed runs what was refused, or refuses what was approved.",
    "expiry": "An approval that counts on the wrong side of its instant runs what nobody approved in time.",
    "marking": "A turn that is not marked as ready waits for ever although everything it waits for is decided.",
    "opening": "Every other law takes the opener for granted; while it is wrong, no other answer means anything.",
    "pruning": "A prune that removes too much destroys conversations; one that removes too little never ends growing.",
    "sessions": "State and scope tell applications whose conversation it is and how to show it.",
    "together": "If a turn closes in two steps, a crash between them commits it twice or never.",
}
"""By area, for laws without a promise of their own."""

ANY = "Programs are written against this promise; over a store that breaks it they fail in ways that no test of theirs shows."


def why_it_matters(law: Law) -> str:
    """Return what goes wrong for users of a store that breaks the law."""
    if law.promise is not None and law.promise in PROMISES:
        return PROMISES[law.promise]
    return AREAS.get(law.area, ANY)
