"""Looking at a server for `perdure doctor`: its settings, its own troubles, and whether the indexes have every journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.backend import Finding, Part, StoreUnavailableError, UnsupportedOperationError
from perdure_redis.clients import clients_of
from perdure_redis.keys import Keys
from perdure_redis.plugin import Options
from perdure_redis.routes import Call, route_of
from perdure_redis.settings import OLDEST, Settings, lines, questions

if TYPE_CHECKING:
    from perdure.backend import StoreURL
    from perdure_redis.routes import Route

TROUBLES = {
    "aof_last_write_status": "the last write to the append-only file failed",
    "aof_last_bgrewrite_status": "the last rewrite of the append-only file failed",
    "rdb_last_bgsave_status": "the last snapshot failed",
}
"""By what INFO says of itself, when it is not `ok`, what is wrong with the server."""

CHUNK = 1_000


async def examine(url: StoreURL) -> list[Finding]:
    """Look at a server without changing it.

    Raises:
        StoreUnavailableError: It cannot be reached.
        UnsupportedOperationError: It is too old.
    """
    clients = clients_of(url)
    options = url.options if isinstance(url.options, Options) else Options()
    route = route_of(clients.client, options.timeout, options.max_connections, own=True)
    place = ",".join(str(host) for host in url.hosts) + url.path
    try:
        title = f"{url.scheme}:{'//' if url.hosts else ''}{place}"
        # The servers of a cluster mostly say the same.
        return list(dict.fromkeys([one async for one in _Server(url, route, title).findings()]))
    finally:
        await route.close()
        await clients.close()


@dataclass(frozen=True, slots=True)
class _Server:
    """The server, or the servers, of a URL.

    Attributes:
        url: The URL.
        route: The way there.
        title: What messages call it.
    """

    url: StoreURL
    route: Route
    title: str

    async def findings(self) -> AsyncIterator[Finding]:
        keys = Keys(self.url.namespace, cluster=self.route.cluster)
        call = Call("examine", self.url.namespace, self.title)
        for replies in await self.route.ask_all(call, questions(keys.prefix)):
            for finding in self._settings(replies, call):
                yield finding
        if self.route.cluster:
            yield Finding(f"{self.title}: whether the indexes have every journal is not looked at on a cluster.")
            return
        try:
            for part in Part:
                async for finding in self._index(keys, call, part):
                    yield finding
        except StoreUnavailableError as error:
            if error.retryable:
                raise
            problem = f"whether the indexes have every journal was not looked at: {error.problem}"
            yield Finding(f"{self.title}: {problem}", warning=True)

    def _settings(self, replies: list[Any], call: Call) -> Iterator[Finding]:
        settings = Settings.read(replies, call)
        if settings.version is not None and settings.version < OLDEST:
            raise UnsupportedOperationError(
                self.title, f"Redis {'.'.join(map(str, settings.version))}; 6.2 or newer is needed"
            )
        yield Finding(f"{self.title}: {_told(settings)}.")
        options = self.url.options if isinstance(self.url.options, Options) else Options()
        for danger in settings.dangers(options.ttl is not None):
            yield Finding(f"{self.title}: {danger}", warning=True)
        if settings.forbidden:
            yield Finding(f"{self.title}: the user may not run {', '.join(settings.forbidden)}", warning=True)
        facts = {name: value for reply in replies[:3] if isinstance(reply, bytes) for name, value in lines(reply)}
        for name, trouble in TROUBLES.items():
            if facts.get(name, "ok") != "ok":
                yield Finding(f"{self.title}: {trouble} ({name}:{facts[name]})", warning=True)

    async def _index(self, keys: Keys, call: Call, part: Part) -> AsyncIterator[Finding]:
        """Compare the journals that are there with those that listings show."""
        there = await self._journals(keys, call, part)
        index = keys.index(part, "")
        listed = {member.removeprefix(b"i:") for member in await self.route.one(call, index, _by_id(index))}
        for name in sorted(there - listed):
            # One that was written since the index was read is no finding, and one that was deleted is none either. The key of
            # another program may be no text; then no journal has its name.
            known = name.decode("utf-8", "replace")
            score = await self.route.one(call, index, (b"ZSCORE", index, b"i:" + name))
            if score is None and await self.route.one(call, index, (b"EXISTS", keys.journal(part, known))):
                yield Finding(f"{self.title}: {part} {known} is in no index: no listing shows it", damaged=True)
        gone = len(listed - there)
        if gone:
            yield Finding(f"{self.title}: the index of {part} names {gone} that have expired; listings pass over them.")

    async def _journals(self, keys: Keys, call: Call, part: Part) -> set[bytes]:
        """Walk the keys of the server for the journals of a part."""
        found: set[bytes] = set()
        pattern, cursor = f"{keys.prefix}{{*}}:{part}:*".encode(), b"0"
        while True:
            command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % CHUNK)
            cursor, names = await self.route.one(call, pattern, command)
            found |= {name.split(b":", 4)[4] for name in names}
            if cursor == b"0":
                return found


def _by_id(index: bytes) -> tuple[bytes, ...]:
    """Return the command that lists all members of an index in the order of ids."""
    return (b"ZRANGEBYLEX", index, b"[i:", b"(i:\xff")


def _told(settings: Settings) -> str:
    """Return the settings as people read them."""
    version = "of a version that it does not tell" if settings.version is None else ".".join(map(str, settings.version))
    keeps = {None: "not told", True: "yes", False: "no"}
    return (
        f"Redis {version}, maxmemory-policy {settings.policy or 'not told'}, appendonly {keeps[settings.appends]}, "
        f"save {keeps[settings.saves]}"
    )
