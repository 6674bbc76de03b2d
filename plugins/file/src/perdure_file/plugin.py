"""The plugin: the options of `file:` URLs and the three hooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel, ConfigDict, Field

from perdure.backend import Finding, Journal, StoreURL, journal_hooks

PERDURE_CONTRACT = 1


class Options(BaseModel):
    """The options of a `file:` URL.

    Attributes:
        busy_timeout: How long a write waits for another one of the same key, in seconds. 0: not at all.
        shared: `true` (default): several processes may write, and opening refuses a mount on which locks do not exclude.
            `false`: nothing is refused, and it is yours to see that one process writes at a time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    busy_timeout: float = Field(default=5.0, ge=0, le=3600, allow_inf_nan=False)
    shared: bool = True


perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks(
    "perdure_file.journal:FileJournal.from_url"
)


def doctor(url: StoreURL, *, salvage: bool) -> Iterator[Finding]:
    """Look at every file of a directory for `perdure doctor`: say what is wrong, and whether it still is afterwards.

    Args:
        url: The store. A namespace other than `default` limits it to that one; else all are looked at.
        salvage: Whether to replace damaged files by what is whole in them. The damaged ones are kept.
    """
    from perdure_file.doctor import doctor as examine

    namespace = None if url.namespace == "default" else url.namespace
    options = {} if url.options is None else url.options.model_dump()
    count = 0
    for report in examine(url.path, namespace=namespace, repair=salvage, **options):
        count += 1
        if report.torn or not report.whole:
            yield Finding(str(report), damaged=not report.whole and report.recovered is None)
    yield Finding(f"Files examined: {count}.")


def read_only(url: StoreURL) -> Journal:
    """Return a journal for `perdure doctor` that reads what is there, and makes nothing."""
    from perdure_file.journal import FileJournal

    return FileJournal.from_url(url, read_only=True)


def conformance_targets() -> dict[str, str]:
    """Name what the conformance kit opens."""
    return {"file": "file:{dir}/data"}


def conformance_helpers(url: StoreURL) -> Mapping[str, object]:
    """Tell the conformance kit what it can do to a closed store."""
    from perdure_file.conformance import helpers

    return helpers(url)
