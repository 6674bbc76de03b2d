"""The SQLite store of perdure."""
