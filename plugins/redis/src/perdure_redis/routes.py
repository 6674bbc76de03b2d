"""The one way to the server.

A command goes out over a connection that nobody else has, and its reply is read, or the connection is closed. So no reply
is ever left for somebody else, and it is known whether a command can have arrived.

The client's own `execute_command` is not used: it repeats commands, writes too, and does not tell what was sent.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from hiredis import pack_command
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from perdure.backend import StoreClosedError, StoreUnavailableError
from perdure_redis.deadlines import Deadline, Deadlines
from perdure_redis.failures import failure, is_replica

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio.cluster import ClusterNode
    from redis.asyncio.connection import AbstractConnection

Client: TypeAlias = "Redis | RedisCluster"
Command: TypeAlias = tuple[bytes, ...]

REDIRECTIONS = 5
"""How often one call follows a cluster that moves."""

Turns: TypeAlias = "defaultdict[str, asyncio.Semaphore]"

_turns: WeakKeyDictionary[Any, tuple[asyncio.AbstractEventLoop, Turns]] = WeakKeyDictionary()


class Call(NamedTuple):
    """What is being done, for messages and for what a failure means.

    Attributes:
        operation: The method.
        key: The ids.
        where: The server, without secrets.
        writes: Whether it may change anything.
    """

    operation: str
    key: str
    where: str
    writes: bool = False


class Route(ABC):
    """Sends commands to whoever has a key.

    Attributes:
        cluster: Whether the keys are spread over several servers.
    """

    cluster = False
    _open = False

    def __init__(self, client: Any, timeout: float, limit: int) -> None:
        """Send over the connections of a client.

        Args:
            client: The client.
            timeout: How long one exchange may take, the wait for a free connection included, in seconds.
            limit: How many calls go on at once, on a cluster with each node; others wait for a connection. Routes of one client
                share this, and the first says it.
        """
        self.client: Any = client  # redis-py types its own commands, and this module goes below them
        self.timeout = timeout
        self._limit = limit

    async def send(self, call: Call, key: bytes, commands: Sequence[Command]) -> list[Any]:
        """Send commands to the server of a key, and return a reply for each; one that is an error is not raised.

        Raises:
            StoreUnavailableError: Nothing was done.
            OutcomeUnknownError: A write may have been done.
            StoreClosedError: The route was closed before the turn of the call came. Nothing was done.
        """
        try:
            return await self._send(call, key, commands)
        except StoreUnavailableError as error:
            # A server that restarted or an idle connection that was cut: a read may simply be asked again.
            if call.writes or not isinstance(error.__cause__, RedisConnectionError):
                raise
            return await self._send(call, key, commands)

    async def one(self, call: Call, key: bytes, command: Command) -> Any:
        """Send one command and return its reply, or raise what the error in it means."""
        return answered((await self.send(call, key, [command]))[0], call)

    async def each(self, call: Call, requests: Sequence[tuple[bytes, Command]]) -> list[Any]:
        """Send a command for each of many keys, together for each server, and return their replies. They read only."""
        batches: dict[Any, list[int]] = {}
        for number, (key, _) in enumerate(requests):
            batches.setdefault(await self._source(call, key), []).append(number)
        replies: list[Any] = [None] * len(requests)
        for numbers in batches.values():
            commands = [requests[number][1] for number in numbers]
            for number, reply in zip(numbers, await self.send(call, requests[numbers[0]][0], commands), strict=True):
                replies[number] = reply
        for number, (key, command) in enumerate(requests):
            if isinstance(replies[number], MovedError | AskError):
                replies[number] = (await self.send(call, key, [command]))[0]
        return replies

    @abstractmethod
    async def _source(self, call: Call, key: bytes) -> Any:
        """Return where the connections to the server of a key come from."""

    @abstractmethod
    async def _send(self, call: Call, key: bytes, commands: Sequence[Command]) -> list[Any]: ...

    async def close(self) -> None:
        """Refuse the calls that still wait for a connection, and close the connections that are not the client's."""
        self._open = False

    async def ask_all(self, call: Call, commands: Sequence[Command]) -> list[list[Any]]:
        """Send commands to each server that holds keys, and return the replies of each. It comes before everything else."""
        self._turns, self._deadlines = turns_of(self.client, self._limit), Deadlines(self.timeout)
        self._open = True
        return await self._ask_all(call, commands)

    @abstractmethod
    async def _ask_all(self, call: Call, commands: Sequence[Command]) -> list[list[Any]]: ...

    async def _exchange(self, call: Call, source: Any, commands: Sequence[Command]) -> list[Any]:
        packed = list(map(pack_command, commands))  # type: ignore[arg-type]  # reason: its stub wants one length
        sent = False
        try:
            with Deadline(self._deadlines):
                async with self._turns[self._place(source)]:
                    self._check_open(call)
                    connection = await self._acquire(source)
                    try:
                        if await connection.can_read():  # closed by the server, or with a reply that nobody waits for
                            await connection.disconnect(nowait=True)
                            await self._connect(source, connection)
                        sent = True
                        await connection.send_packed_command(packed, check_health=False)
                        return await _replies(connection, len(commands))
                    except BaseException:
                        await connection.disconnect(nowait=True)
                        raise
                    finally:
                        await self._release(source, connection)
        except StoreClosedError:
            raise
        except Exception as error:
            raise failure(error, call, sent=sent) from error

    def _check_open(self, call: Call) -> None:
        if not self._open:
            raise StoreClosedError(call.where)

    def _place(self, source: Any) -> str:
        """Return the name of the server, where a client has several: each has connections of its own."""
        return ""

    @abstractmethod
    async def _acquire(self, source: Any) -> Any: ...

    async def _connect(self, source: Any, connection: Any) -> None:
        await connection.connect()

    @abstractmethod
    async def _release(self, source: Any, connection: Any) -> None: ...


class SingleRoute(Route):
    """One server: known by its address, or the one that Sentinel calls the master."""

    async def _source(self, call: Call, key: bytes) -> Any:
        return self.client.connection_pool

    async def _send(self, call: Call, key: bytes, commands: Sequence[Command]) -> list[Any]:
        return await self._exchange(call, self.client.connection_pool, commands)

    async def _ask_all(self, call: Call, commands: Sequence[Command]) -> list[list[Any]]:
        return [await self.send(call, b"", commands)]

    async def _acquire(self, source: Any) -> Any:
        return await source.get_connection()

    async def _release(self, source: Any, connection: Any) -> None:
        await source.release(connection)


class OwnRoute(SingleRoute):
    """One server, over connections that nobody else uses. A pool's books, for each call, would cost a quarter of a write.

    Who is the master may change while connections stay open. So when one breaks, when it gets `READONLY`, or when Sentinel
    names another master, all that were made before are closed: the idle ones at once, those in use when their calls end.
    """

    _master: Any = None

    def __init__(self, client: Any, timeout: float, limit: int) -> None:
        """Make the connections that a client would make, and keep them from `ask_all` to `close`."""
        super().__init__(client, timeout, limit)
        self._idle: list[Any] = []
        self._kept: set[Any] = set()  # idle or in use

    async def _acquire(self, source: Any) -> Any:
        if self._has_new_master(source):
            await self._drop()
        connection = self._idle.pop() if self._idle else source.make_connection()
        if not connection.is_connected:
            await self._connect(source, connection)
        return connection

    async def _connect(self, source: Any, connection: Any) -> None:
        if connection in self._kept:
            await self._drop()
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if self._has_new_master(source):
            await self._drop()
        if self._open and (self._master is None or self._master == (connection.host, connection.port)):
            self._kept.add(connection)

    def _has_new_master(self, source: Any) -> bool:
        """Say whether Sentinel has named another master meanwhile, perhaps to another call, and perhaps one that hangs."""
        known, self._master = self._master, getattr(source, "master_address", None)
        return bool(self._master != known)

    async def _release(self, source: Any, connection: Any) -> None:
        if connection not in self._kept:
            await connection.disconnect(nowait=True)
        elif connection.is_connected:
            self._idle.append(connection)
        else:
            await self._drop()

    async def _drop(self) -> None:
        self._kept.clear()
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    async def close(self) -> None:
        """Close the connections; those in use are closed when their calls end."""
        await super().close()
        await self._drop()


class ClusterRoute(Route):
    """A cluster: each key has a slot, each slot a server, and both move."""

    cluster = True
    _lost: str | None = None  # the node that failed since the map was read, or "" for none in particular

    async def _send(self, call: Call, key: bytes, commands: Sequence[Command]) -> list[Any]:
        node = await self._source(call, key)
        replies: list[Any] = []
        for _ in range(REDIRECTIONS):
            replies = await self._exchange_with(call, node, commands)
            redirection = replies[0]
            if isinstance(redirection, AskError):
                node = await self._redirected(call, redirection)
                replies = (await self._exchange_with(call, node, [(b"ASKING",), *commands]))[1:]
            elif isinstance(redirection, MovedError):
                await self.client.nodes_manager.move_slot(redirection)
                node = await self._source(call, key)
                continue
            elif isinstance(redirection, ClusterDownError):
                self._lost = node.name  # somebody else takes over
            break
        return replies

    async def _ask_all(self, call: Call, commands: Sequence[Command]) -> list[list[Any]]:
        await self._source(call, b"")
        return [await self._exchange_with(call, node, commands) for node in self.client.get_primaries()]

    async def _exchange_with(self, call: Call, node: ClusterNode, commands: Sequence[Command]) -> list[Any]:
        try:
            return await self._exchange(call, node, commands)
        except asyncio.CancelledError:  # it may have waited for long, but less is known than of one that failed
            self._lost = self._lost or node.name
            raise
        except Exception:
            self._lost = node.name  # it may be gone: the next call asks the others who has its slots
            raise

    async def _source(self, call: Call, key: bytes) -> ClusterNode:
        self._check_open(call)  # else the client would open again
        try:
            async with asyncio.timeout(self.timeout):
                await self.client.initialize()
                if self._lost is not None:
                    await self._read_map(self._lost)
                node: ClusterNode = self.client.nodes_manager.get_node_from_slot(self.client.keyslot(key))
                return node
        except Exception as error:
            self._lost = self._lost or ""
            raise failure(error, call, sent=False) from error

    async def _read_map(self, lost: str) -> None:
        """Ask others than a node who has which slots. If they hang, the old map has to do: who fails by it asks again."""
        with suppress(Exception):
            async with asyncio.timeout(self.timeout / 2):
                await self.client.nodes_manager.initialize(last_failed_node_name=lost)
        if self._lost == lost:  # else another one failed meanwhile
            self._lost = None

    async def _redirected(self, call: Call, to: AskError) -> ClusterNode:
        """Return the node that a slot is moving to."""
        for _ in range(2):
            node: ClusterNode | None = self.client.get_node(host=to.host, port=to.port)
            if node is not None:
                return node
            self._lost = self._lost or ""
            await self._source(call, b"")
        raise failure(to, call, sent=False)

    def _place(self, source: ClusterNode) -> str:
        return source.name

    async def _acquire(self, source: Any) -> Any:
        connection = source.acquire_connection()
        try:
            await source.disconnect_if_needed(connection)
            await connection.connect()
        except BaseException:
            source.release(connection)
            raise
        return connection

    async def _release(self, source: Any, connection: Any) -> None:
        source.release(connection)


def route_of(client: Client, timeout: float, limit: int, *, own: bool) -> Route:
    """Return the route of a client; never more calls go on at once than it has connections. `own`: nobody else uses it."""
    if isinstance(client, RedisCluster):
        return ClusterRoute(client, timeout, min(limit, client.connection_kwargs["max_connections"]))
    kind = OwnRoute if own else SingleRoute
    return kind(client, timeout, min(limit, client.connection_pool.max_connections))


def turns_of(client: Client, limit: int) -> Turns:
    """Return what all journals over a client wait for, by server. Each for itself, they would ask for more than it has."""
    pool, loop = getattr(client, "connection_pool", client), asyncio.get_running_loop()
    known = _turns.get(pool)
    if known is None or known[0] is not loop:  # a client may have been closed in one loop and go on in another
        known = _turns[pool] = loop, defaultdict(partial(asyncio.Semaphore, limit))
    return known[1]


def answered(reply: Any, call: Call) -> Any:
    """Return a reply, or raise what it means if it is an error."""
    if isinstance(reply, Exception):
        raise failure(reply, call, sent=True)
    return reply


async def _replies(connection: AbstractConnection, many: int) -> list[Any]:
    """Read replies as bytes, whatever the client decodes; an error reply is returned, so that those behind it are read too.

    Raises:
        ResponseError: The server is a replica now. Whoever took over is at the end of a new connection, not of this one.
    """
    replies: list[Any] = []
    for _ in range(many):
        try:
            replies.append(await connection.read_response(disable_decoding=True))
        except ResponseError as error:
            if not replies and is_replica(error):
                raise
            replies.append(error)
    return replies
