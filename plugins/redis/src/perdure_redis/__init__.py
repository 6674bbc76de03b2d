"""The Redis store of perdure."""
