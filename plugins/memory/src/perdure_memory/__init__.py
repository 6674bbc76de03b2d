"""The memory store of perdure."""
