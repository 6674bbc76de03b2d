"""A cluster of three masters on loopback."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from plugins.redis.tests.servers import VALKEY, Server

if TYPE_CHECKING:
    from pathlib import Path

RANGES = [(0, 5460), (5461, 10922), (10923, 16383)]


class Cluster:
    """Three masters that know each other."""

    def __init__(self, directory: Path, binary: str = VALKEY) -> None:
        options = {"cluster-enabled": "yes", "cluster-require-full-coverage": "no"}
        options["cluster-node-timeout"] = "60000"  # a loaded machine that stands still for seconds is no dead master
        options["appendfsync"] = "always"  # with everysec a write may wait for the fsync before it, also to be written
        self.nodes = [Server(directory / f"node{number}", binary, options) for number in range(3)]
        self._exits = ExitStack()

    @property
    def port(self) -> int:
        return self.nodes[0].port

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def __enter__(self) -> Self:
        for node, (first, last) in zip(self.nodes, RANGES, strict=True):
            self._exits.callback(node.kill)
            node.start()
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", self.port)
        self.ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def ready(self) -> None:
        """Wait until each node sees all slots served."""
        deadline = time.monotonic() + 30
        infos: list[str] = []
        while time.monotonic() < deadline:
            infos = [str(node.ask("CLUSTER", "INFO")) for node in self.nodes]
            if all("cluster_state:ok" in info and "cluster_slots_ok:16384" in info for info in infos):
                return
            time.sleep(0.02)
        raise AssertionError(infos)

    def node_id(self, node: Server) -> str:
        return str(node.ask("CLUSTER", "MYID"))
