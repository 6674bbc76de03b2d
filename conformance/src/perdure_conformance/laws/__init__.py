"""The laws, one module for each area."""

from perdure_conformance.laws.register import Law, all_laws

__all__ = ["Law", "all_laws"]
