"""The file store of perdure."""
