"""The Redis backend: a list for each journal, its head first, and one script for each write."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.backend import (
    Capabilities,
    Delete,
    InvalidIdError,
    Journal,
    JournalInfo,
    JournalSnapshot,
    Key,
    Operation,
    Part,
    Position,
    SchemaVersionError,
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
    StoreURL,
    VersionConflictError,
    WrongLoopError,
)
from perdure_redis.acknowledgement import Acknowledgement
from perdure_redis.clients import Clients, clients_of
from perdure_redis.heads import FORMAT, arguments, read_head
from perdure_redis.keys import Keys
from perdure_redis.listing import Listing, Pages
from perdure_redis.plugin import Options
from perdure_redis.routes import Call, Client, answered, route_of
from perdure_redis.scripts import READ, WRITE
from perdure_redis.seen import LastSeen, newer
from perdure_redis.settings import Settings, questions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,64}")
MOST = 2**32
"""More items than a list can hold; a server refuses numbers that are much larger."""


class RedisJournal(Journal):
    """Keeps everything on a Redis or Valkey server, behind Sentinel, or in a cluster.

    Where: one list for each journal and one sorted set for each part, see the reference page of the backend.
    Survives: what the server survives: with `appendonly yes` and `appendfsync always` everything acknowledged, with
    `everysec` all but the last two seconds. A failover may lose what no replica had; `wait` bounds that.
    Shared by: any number of processes and hosts. An object belongs to the event loop and the process that opened it.
    Limits: memory of the server; 512 MB an item.
    """

    capabilities = Capabilities(durable=True, shared=True, atomic=True)

    def __init__(
        self,
        client: Client | Clients,
        *,
        namespace: str = "default",
        timeout: float = 10.0,
        wait: int = 0,
        waitaof: bool = False,
        strict: bool = False,
        ttl: float | None = None,
        max_connections: int = 50,
    ) -> None:
        """Use a client, which stays the caller's to close.

        Args:
            client: A `redis.asyncio.Redis` or `RedisCluster`, however it decodes and whatever protocol it speaks. That of a
                URL comes as `Clients`, and is closed with the journal.
            namespace: The tenant.
            timeout: How long one exchange with a server may take, the wait for a free connection included, in seconds.
            wait: How many replicas must have a write.
            waitaof: Whether the disk must have a write.
            strict: Whether a server whose settings may lose data is refused.
            ttl: How long a conversation is kept after its last write, in seconds; `None`: for ever. Whoever writes last decides.
            max_connections: How many calls go on at once over the client, on a cluster with each master. Journals of one client
                share this; the first says it.
        """
        if not NAMESPACE.fullmatch(namespace):
            raise InvalidIdError("namespace", namespace, "1 to 64 characters of A-Z a-z 0-9 _ -")
        self.namespace = namespace
        self.title = "redis"
        self._clients = client if isinstance(client, Clients) else None
        used = client.client if isinstance(client, Clients) else client
        self._route = route_of(used, timeout, max_connections, own=isinstance(client, Clients))
        self._keys = Keys(namespace, cluster=self._route.cluster)
        self._ttl = 0 if ttl is None else max(1, round(ttl * 1000))
        self._strict = strict
        self._acknowledged = Acknowledgement(wait, waitaof, timeout)
        self._seen = LastSeen()
        self._forbidden: list[str] = []
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._closed = False

    @classmethod
    def from_url(cls, url: StoreURL) -> RedisJournal:
        """Make the journal that a URL names."""
        options = url.options if isinstance(url.options, Options) else Options()
        kept = options.model_dump(include={"timeout", "wait", "waitaof", "strict", "ttl", "max_connections"})
        journal = cls(clients_of(url), namespace=url.namespace, **kept)
        place = ",".join(str(host) for host in url.hosts) + url.path
        journal.title = f"{url.scheme}:{'//' if url.hosts else ''}{place}"
        return journal

    async def open(self) -> None:
        """Connect, and look at the server's settings."""
        if self._closed:
            raise StoreClosedError(self.title)
        if self._home is not None:
            return
        try:
            durable = await self._look_at_settings()
        except BaseException:
            await self._disconnect()
            raise
        self.capabilities = replace(self.capabilities, durable=durable)
        self._home = os.getpid(), asyncio.get_running_loop()

    async def close(self) -> None:
        """Close the connections that a URL opened. A client that was handed in stays open."""
        self._closed = True
        if self._home in (None, (os.getpid(), asyncio.get_running_loop())):  # elsewhere they are not ours to touch
            await self._disconnect()

    async def _disconnect(self) -> None:
        await self._route.close()
        if self._clients is not None:
            await self._clients.close()

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read the head and the items in one command."""
        call, name, known = self._call("read", key.id), self._keys.journal(key.part, key.id), self._seen.of(key)
        after, most = min(after, MOST), MOST if limit is None else min(limit, MOST)
        if last is None and after == 0:  # the head is the first element
            found = await self._route.one(call, name, (b"LRANGE", name, b"0", b"%d" % most))
        else:
            window = (after, most) if last is None else (-1, min(last, MOST))
            reply = await READ.run(self._route, call, [name], [b"%d" % number for number in window])
            found = [one for part in answered(reply[0], call) for one in (part if isinstance(part, list) else [part])]
        if not found:
            return None
        where = self._where(key)
        info, rewritten, birth = read_head(key.id, found[0], where)
        self._look_back(key, known, birth, info.version)
        start = min(after, info.count) if last is None else max(0, info.count - last)
        stop = min(info.count, start + most)
        if len(found) - 1 != stop - start:
            raise StoreCorruptedError(where, "it does not have the items that its head counts")
        times = info.created_at, info.updated_at
        return JournalSnapshot(key.id, info.version, info.count, info.head, *times, found[1:], start, rewritten)

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        """Run one script, and wait for replicas and disk if that was asked for."""
        call = self._call("write", ", ".join([operation.key.id for operation in operations]), writes=True)
        if self._forbidden:
            error = StoreUnavailableError(
                "write", call.key, f"the user may not run {', '.join(self._forbidden)} ({self.title})"
            )
            error.retryable = False
            raise error
        keys: list[bytes] = []
        known: list[bytes] = []
        given = [b"%d" % len(operations), b"%d" % self._ttl, self._keys.prefix.encode()]
        for operation in operations:
            seen = self._seen.of(operation.key)
            keys += self._keys.of(operation.key)
            known.append(seen)
            given += arguments(operation, seen)
        whole = self._keys.conversation(operations[0].key.id) if self._ttl else []
        commands = self._acknowledged.commands
        reply, *confirmations = await WRITE.run(self._route, call, [*keys, *whole], given, commands)
        kind, *rest = answered(reply, call)
        # Somebody gave the conversation an end: nothing was written, and taking it away needs all its keys.
        if kind == b"ends":
            whole = self._keys.conversation(operations[0].key.id)
            reply, *confirmations = await WRITE.run(self._route, call, [*keys, *whole], given, commands)
            kind, *rest = answered(reply, call)
        if kind != b"ok":
            number = int(rest[0]) - 1
            raise self._refusal(kind, operations[number], known[number], rest[1:])
        versions = tuple(map(int, rest[::2]))
        for operation, version, birth in zip(operations, versions, rest[1::2], strict=True):
            if isinstance(operation, Delete):
                self._seen.forget(operation.key)
            else:
                self._seen.note(operation.key, birth, version)
        self._acknowledged.check(confirmations, call)
        return versions

    async def scan(
        self,
        part: Part,
        *,
        group: str | None,
        status: str | None,
        before: datetime | None,
        order: str,
        after: Position | None,
        limit: int,
    ) -> Sequence[JournalInfo]:
        """List heads in the order of the index."""
        listing = Listing(part, group, status, before, order)
        return await Pages(self._route, self._keys, listing, self._call("scan", part.value)).read(after, limit)

    async def _look_at_settings(self) -> bool:
        """Warn of settings that may lose data, or refuse them; say whether what is acknowledged is kept."""
        call = Call("open", f"namespace {self.namespace}", self.title)
        settings = [
            Settings.read(replies, call) for replies in await self._route.ask_all(call, questions(self._keys.prefix))
        ]
        for one in settings:
            one.check(self.title, strict=self._strict, expiring=self._ttl > 0, waitaof=self._acknowledged.waitaof)
        self._forbidden = sorted({name for one in settings for name in one.forbidden})
        return all(one.appends for one in settings)

    def _call(self, operation: str, key: str, *, writes: bool = False) -> Call:
        """Return a call, if calls may be made from here."""
        if self._closed or self._home is None:
            raise StoreClosedError(self.title)
        pid, loop = self._home
        if pid != os.getpid():  # `THIS_PROCESS` knows of no fork that C has made, and that must not use the connections
            raise WrongLoopError(self.title, "was opened in another process, of which this one is a fork")
        if loop is not asyncio.get_running_loop():
            raise WrongLoopError(self.title, "belongs to another event loop")
        return Call(operation, key, self.title, writes)

    def _where(self, key: Key) -> str:
        return f"{self.title}: {key.part} {key.id}"

    def _look_back(self, key: Key, known: bytes, birth: bytes, version: int) -> None:
        """Raise if the journal was newer before the call, else remember what it is at."""
        once = newer(known, birth, version)
        if once is not None:
            problem = f"it went back from version {once} to {version}: a failover lost writes"
            raise StoreCorruptedError(self._where(key), problem)
        self._seen.note(key, birth, version)

    def _refusal(self, kind: bytes, operation: Operation, known: bytes, facts: Sequence[bytes]) -> StoreError:
        """Return the error for a script that refused an operation. Nothing was written."""
        key = operation.key
        if kind == b"format":
            return SchemaVersionError(self._where(key), int(facts[0]), FORMAT)
        if kind == b"damaged":
            return StoreCorruptedError(self._where(key), "its head and its items do not belong together")
        actual, birth = int(facts[0]), facts[1]
        if actual:
            self._look_back(key, known, birth, actual)
        return VersionConflictError(key.id, operation.expected_version, actual)
