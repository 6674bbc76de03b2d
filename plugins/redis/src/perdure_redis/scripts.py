"""The Lua scripts. Each runs to its end as one step, and names every error that it raises itself in its answer."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure_redis.routes import Call, Route

FAMILY = "perdure_redis"


class Script:
    """A script made of parts, sent by its digest."""

    def __init__(self, *names: str) -> None:
        """Join the parts; the last one is the script, the others are what it uses."""
        self.text = b"\n".join(files(FAMILY).joinpath(f"{name}.lua").read_bytes() for name in names)
        self.digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def command(self, keys: Sequence[bytes], arguments: Sequence[bytes], *, known: bool = True) -> tuple[bytes, ...]:
        """Return the command that runs the script; `known`: the server has it already."""
        begin = (b"EVALSHA", self.digest) if known else (b"EVAL", self.text)
        return (*begin, b"%d" % len(keys), *keys, *arguments)

    async def run(
        self,
        route: Route,
        call: Call,
        keys: Sequence[bytes],
        arguments: Sequence[bytes],
        then: Sequence[tuple[bytes, ...]] = (),
    ) -> list[Any]:
        """Run the script and then other commands on the same connection, and return their replies.

        A server that does not have the script has done nothing, so sending the text is no repetition.
        """
        replies = await route.send(call, keys[0], [self.command(keys, arguments), *then])
        if isinstance(replies[0], NoScriptError):
            replies = await route.send(call, keys[0], [self.command(keys, arguments, known=False), *then])
        return replies

    async def run_each(self, route: Route, call: Call, requests: Sequence[tuple[bytes, Sequence[bytes]]]) -> list[Any]:
        """Run the script for each of many keys with its arguments, and return the replies. It must not write."""
        replies = await route.each(call, [(key, self.command([key], arguments)) for key, arguments in requests])
        for number, (key, arguments) in enumerate(requests):
            if isinstance(replies[number], NoScriptError):
                replies[number] = (await self.run(route, call, [key], arguments))[0]
        return replies


WRITE = Script("append", "head", "index", "expiry", "write")
READ = Script("read")
SCAN = Script("head", "index", "scan")
