"""The plugin: the options of the URLs of Redis and the three hooks. It loads without the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from perdure.backend import Finding, Journal, StoreURL, UnsupportedOperationError, journal_hooks

PERDURE_CONTRACT = 1


class Options(BaseModel):
    """The options of a `redis:`, `rediss:`, `redis+unix:`, `redis+sentinel:` or `redis+cluster:` URL.

    Attributes:
        timeout: How long one exchange with a server may take, the wait for a free connection included, in seconds.
        wait: How many replicas must have a write before it is acknowledged. 0: none.
        waitaof: Whether the disk must have a write before it is acknowledged; needs Redis 7.2 with `appendonly yes`.
        strict: Whether a server whose settings may lose data is refused, instead of warned of.
        ttl: How long a conversation is kept after its last write, in seconds. `None`: for ever. Whoever writes last decides.
        max_connections: How many calls go on at once, on a cluster with each master; others wait for a connection.
        protocol: RESP 2 or 3.
        db: The number of the database; it may stand in the path too.
        tls: Whether the servers are spoken to over TLS; `rediss:` says so itself.
        ca: A file with the certificates to trust; `None`: the system's.
        cert: A file with the client's certificate.
        cert_key: A file with the client's private key.
        sentinel_username: The name to log in to the Sentinels with.
        sentinel_password: The password for it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float = Field(default=10.0, gt=0, le=3600, allow_inf_nan=False)
    wait: int = Field(default=0, ge=0, le=100)
    waitaof: bool = False
    strict: bool = False
    ttl: float | None = Field(default=None, ge=0.001, le=10**10, allow_inf_nan=False)
    max_connections: int = Field(default=50, ge=1, le=10_000)
    protocol: int = Field(default=3, ge=2, le=3)
    db: int | None = Field(default=None, ge=0)
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None
    sentinel_username: str | None = None
    sentinel_password: SecretStr | None = None


perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks(
    "perdure_redis.journal:RedisJournal.from_url", takes_host=True
)


def doctor(url: StoreURL, *, salvage: bool) -> Iterator[Finding]:
    """Look at a server for `perdure doctor`, without changing it: its settings, its troubles, and its indexes.

    Args:
        url: The store.
        salvage: Refused: what a server has lost is in its backups.
    """
    from perdure_redis.examination import examine

    if salvage:
        error = UnsupportedOperationError(f"the plugin of {url.scheme!r}", "salvage")
        error.hint = "Restore a backup of the server."
        raise error
    yield from asyncio.run(examine(url))


def read_only(url: StoreURL) -> Journal:
    """Return a journal for `perdure doctor`. To open one writes nothing; the settings are told by `doctor`."""
    from perdure_redis.journal import RedisJournal

    options = url.options if isinstance(url.options, Options) else Options()
    return RedisJournal.from_url(replace(url, options=options.model_copy(update={"strict": False, "waitaof": False})))


def conformance_targets() -> Mapping[str, str]:
    """Name what the conformance kit opens: a server that is started for it."""
    from perdure_redis.conformance import targets

    return targets()


def conformance_helpers(url: StoreURL) -> Mapping[str, object]:
    """Tell the conformance kit what it can do to a closed store."""
    from perdure_redis.conformance import helpers

    return helpers(url)
