"""What a store declares that it can do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The declared capabilities of a store. Nothing is guessed from its methods; the conformance kit proves each.

    Attributes:
        replace: Offers `replace`.
        delete: Offers `delete`.
        list: Offers `list`.
        durable: What is acknowledged survives the process.
        shared: Several processes may use it at once.
        atomic: Several writes of one conversation are all or none.
    """

    replace: bool = False
    delete: bool = False
    list: bool = False
    durable: bool = False
    shared: bool = False
    atomic: bool = False
