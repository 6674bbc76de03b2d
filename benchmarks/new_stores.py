"""URLs of stores that nobody has used yet."""

from benchmarks.bench import Bench


def sqlite(bench: Bench) -> str:
    """Return the URL of a new database."""
    return f"sqlite:{bench.place('agent.db')}"


def redis(bench: Bench) -> str:
    """Return the URL of a new namespace."""
    return f"{bench.server().url}/0?namespace=n{bench.place('n').parent.name}"


def file(bench: Bench) -> str:
    """Return the URL of a new directory."""
    return f"file:{bench.place('store')}"


def memory(_: Bench) -> str:
    """Return the URL of a store in memory."""
    return "memory:"
