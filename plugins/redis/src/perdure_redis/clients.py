"""The client that a URL names. Nothing is sent before it is used."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from perdure.backend import StoreURLError
from perdure_redis.plugin import Options

if TYPE_CHECKING:
    from perdure.backend import Host, StoreURL
    from perdure_redis.routes import Client

PORT, SENTINEL_PORT = 6379, 26379


@dataclass(frozen=True, slots=True)
class Clients:
    """A client, and whatever else must be closed with it."""

    client: Client
    others: tuple[Redis, ...] = field(default=())

    async def close(self) -> None:
        """Close all connections, also if one of them does not close or the call is cancelled."""
        async with AsyncExitStack() as closing:
            for client in (self.client, *self.others):
                closing.push_async_callback(client.aclose)


def clients_of(url: StoreURL) -> Clients:
    """Make the client that a URL names.

    Raises:
        StoreURLError: The URL lacks what its scheme needs.
    """
    options = url.options if isinstance(url.options, Options) else Options()
    tls = url.scheme == "rediss" or options.tls
    _check_options(url, options, tls)
    common = _connection(url, options) | (_tls(options) if tls else {})
    if url.scheme == "redis+unix":
        if url.hosts or not url.path:
            raise _refused(url, "must name the socket's path, as in redis+unix:/run/redis.sock")
        return Clients(Redis(unix_socket_path=url.path, db=options.db or 0, **common))
    if url.scheme == "redis+cluster":
        if url.path.strip("/") or options.db:
            raise _refused(url, "has a path or a db, and a cluster has one database only")
        nodes = [ClusterNode(host.name or "127.0.0.1", host.port or PORT) for host in _hosts(url)]
        common["max_connections"] += 1  # one more to ask who has which slots, when all are in use
        return Clients(RedisCluster(startup_nodes=nodes, **common))
    if url.scheme == "redis+sentinel":
        return _sentinel(url, options, common)
    if len(_hosts(url)) > 1:
        raise _refused(url, "names several hosts; that is for redis+sentinel and redis+cluster")
    host = _hosts(url)[0]
    return Clients(
        Redis(host=host.name or "localhost", port=host.port or PORT, db=_db(url, options, url.path), **common)
    )


def _check_options(url: StoreURL, options: Options, tls: bool) -> None:
    """Refuse what would have no effect: who names a certificate means TLS."""
    if options.tls and url.scheme == "redis+unix":
        raise _refused(url, "asks for TLS, which a socket of this machine does not speak")
    for name in ("ca", "cert", "cert_key"):
        path = getattr(options, name)
        if path is not None and not tls:
            raise _refused(url, f"has the option {name} without TLS; take rediss, or tls=true")
        if path is not None and not Path(path).is_file():
            raise _refused(url, f"has the option {name}, and there is no file {path}")
    if options.cert_key is not None and options.cert is None:
        raise _refused(url, "has the option cert_key without cert")
    for name in ("sentinel_username", "sentinel_password"):
        if getattr(options, name) is not None and url.scheme != "redis+sentinel":
            raise _refused(url, f"has the option {name}, which is for redis+sentinel")


def _sentinel(url: StoreURL, options: Options, common: dict[str, Any]) -> Clients:
    service, _, db = url.path.strip("/").partition("/")
    if not service:
        raise _refused(url, "must name the master, as in redis+sentinel://host:26379/mymaster")
    hosts = [(host.name or "localhost", host.port or SENTINEL_PORT) for host in _hosts(url)]
    # They are asked in turn: however many hang, the call has time for the master.
    share = options.timeout / (len(hosts) + 1)
    login = {"username": options.sentinel_username, "password": _secret(options)}
    times = {"socket_timeout": share, "socket_connect_timeout": share}
    manager = Sentinel(hosts, sentinel_kwargs=common | login | times)  # type: ignore[no-untyped-call]  # reason: redis-py does not type it
    master = manager.master_for(service, db=_db(url, options, db), **common)
    return Clients(master, tuple(manager.sentinels))


def _connection(url: StoreURL, options: Options) -> dict[str, Any]:
    """What all connections have in common. Nothing is repeated: who calls knows best what may be done twice."""
    return {
        "username": url.username,
        "password": url.password,
        "protocol": options.protocol,
        "max_connections": options.max_connections,
        "socket_timeout": None,  # each call has a limit of its own
        "socket_connect_timeout": options.timeout,
        "retry": Retry(NoBackoff(), 0),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def _tls(options: Options) -> dict[str, Any]:
    return {
        "ssl": True,
        "ssl_ca_certs": options.ca,
        "ssl_certfile": options.cert,
        "ssl_keyfile": options.cert_key,
    }


def _hosts(url: StoreURL) -> tuple[Host, ...]:
    if not url.hosts:
        raise _refused(url, f"must name a host, as in {url.scheme}://localhost")
    return url.hosts


def _db(url: StoreURL, options: Options, path: str) -> int:
    text = path.strip("/")
    if text and (not (text.isascii() and text.isdigit()) or options.db not in (None, int(text))):
        raise _refused(url, "has a path that is not the number of a database, or not that of ?db=")
    return int(text) if text else options.db or 0


def _secret(options: Options) -> str | None:
    return None if options.sentinel_password is None else options.sentinel_password.get_secret_value()


def _refused(url: StoreURL, problem: str) -> StoreURLError:
    return StoreURLError(str(url), problem)
