"""Profiles: how long and how often a check tries the laws."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

LARGEST_SEED = 2**32


@dataclass(frozen=True, slots=True)
class Profile:
    """How a check tries the laws.

    Attributes:
        name: What the command line calls it.
        purpose: When to use it, in a few words.
        examples: How many cases a law draws that is tried on many.
        points: How many points of each sweep a law tries that stops or fails calls one after another; `None`: each.
        rounds: How often every law is tried, each time with another seed.
        max_time: After how many seconds the check stops; what is left then is not run.
        seed: The seed of the first round; `None`: a fresh one for each check.
    """

    name: str
    purpose: str
    examples: int
    points: int | None
    rounds: int
    max_time: float
    seed: int | None = 0

    def seeds(self) -> tuple[int, ...]:
        """Return the seed of each round."""
        first = secrets.randbelow(LARGEST_SEED) if self.seed is None else self.seed
        return tuple((first + number) % LARGEST_SEED for number in range(self.rounds))

    def changed(self, *, seed: int | None = None, max_time: float | None = None) -> Profile:
        """Return the profile with what a user asked for instead; `None` changes nothing."""
        return replace(
            self,
            seed=self.seed if seed is None else seed,
            max_time=self.max_time if max_time is None else max_time,
        )


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("quick", "while you write", examples=5, points=3, rounds=1, max_time=120),
        Profile("full", "before a merge", examples=60, points=None, rounds=3, max_time=600),
        Profile(
            "nightly", "with fresh seeds, over night", examples=200, points=None, rounds=50, max_time=1800, seed=None
        ),
    )
}
"""The profiles by name."""


def find_profile(name: str) -> Profile:
    """Return the profile of a name.

    Raises:
        ValueError: There is none; the message says which there are.
    """
    if name not in PROFILES:
        raise ValueError(f"there is no profile {name!r}, only {', '.join(PROFILES)}")
    return PROFILES[name]
