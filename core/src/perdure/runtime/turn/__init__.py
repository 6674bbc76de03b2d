"""One turn: what its loop does, what its journal tells, and how it is saved, left or lost."""
