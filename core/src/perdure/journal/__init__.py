"""The keyed, versioned journal, and the three stores made of it."""
