"""From URLs to an open bundle of stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from perdure import plugins
from perdure.bundle import TRANSCRIPT_CACHE, AgentStore, close_after
from perdure.contracts.approvals import ApprovalStore
from perdure.contracts.checkpoints import CheckpointStore
from perdure.contracts.process import THIS_PROCESS
from perdure.contracts.records import check_count
from perdure.contracts.resources import Resources
from perdure.contracts.sessions import SessionStore
from perdure.contracts.store import Store
from perdure.contracts.urls import StoreURL
from perdure.errors import InvalidArgumentError, UnsupportedOperationError
from perdure.journal.stores import JournalStore

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from perdure.at_rest.codecs import AnyCodec, Codec
    from perdure.clock import Clock


def open_store(
    url: str | None = None,
    *,
    sessions: str | SessionStore | None = None,
    checkpoints: str | CheckpointStore | None = None,
    approvals: str | ApprovalStore | None = None,
    codec: AnyCodec | None = None,
    clock: Clock | None = None,
    transcript_cache: int = TRANSCRIPT_CACHE,
) -> Opening:
    """Open the stores of an agent. Await it, or enter it with `async with`, which also closes.

        async with perdure.open_store("sqlite:agent.db") as store:
            ...

    Args:
        url: Where all parts are that are not given on their own.
        sessions: The transcripts: a URL, or a store of yours, which stays yours to open and close.
        checkpoints: The turn journals, likewise.
        approvals: The approvals, likewise.
        codec: What encrypts or compresses all that is kept where a URL says, or a list of such, in the order in which they
            work on what is written. A store of yours is not touched.
        clock: What tells the time to all of them; `None`: the machine's clock.
        transcript_cache: How many bytes of memory the transcripts may take that no session object holds any more, so that
            the next object for one of them reads only what is new; 0: none is kept.

    Returns:
        An `Opening`. It gives an `AgentStore`, whose `close` closes what was opened here and nothing else. A part that
        is not given, and that the plugin of `url` does not have, is absent: using it raises
        `UnsupportedOperationError`.

    Raises:
        UnknownSchemeError, PluginConflictError, PluginLoadError: No plugin, several, or a broken one. All errors are
            raised by the `await` (or `async with`); whatever was opened before is closed again, also when cancelled.
        StoreURLError: A URL or one of its options is wrong.
        UnsupportedOperationError: A part has a URL of its own whose plugin does not have that part; or a codec is given,
            and a store is no journal.
        InvalidArgumentError: Nothing is given, a part is neither a URL nor such a store, or the codec is none or has
            nothing to work on.
        CodecError: The codec, or its keys, are not those of what is stored. Nothing was written.
        StoreError: The backend could not be opened.
    """
    parts: dict[str, str | Store | None] = {"sessions": sessions, "checkpoints": checkpoints, "approvals": approvals}
    return Opening(url, parts, clock, codec, transcript_cache)


class Opening:
    """What `open_store` returns: `await` it for an open `AgentStore`, or enter it with `async with`."""

    def __init__(
        self,
        url: str | None,
        parts: dict[str, str | Store | None],
        clock: Clock | None,
        codec: AnyCodec | None = None,
        transcript_cache: int = TRANSCRIPT_CACHE,
    ) -> None:
        self._url, self._parts, self._clock, self._codec = url, parts, clock, codec
        self._transcript_cache = transcript_cache
        self._entered: list[AgentStore] = []

    def __await__(self) -> Generator[Any, None, AgentStore]:
        return self._open().__await__()

    def __enter__(self) -> NoReturn:
        error = UnsupportedOperationError("open_store", "a plain `with`")
        error.hint = "Write `async with open_store(...)`; without asyncio, `with perdure.blocking.open_store(...)`."
        raise error

    def __exit__(self, *_: object) -> None:
        """Be there, so that `with` comes to `__enter__`, which says what to write."""

    async def __aenter__(self) -> AgentStore:
        self._entered.append(await self._open())
        return self._entered[-1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await close_after(error, self._entered.pop().close)

    async def _open(self) -> AgentStore:
        if self._url is None and all(given is None for given in self._parts.values()):
            raise InvalidArgumentError("url", 'is missing: give one, such as "sqlite:agent.db", or give a part')
        cache = check_count(self._transcript_cache, "transcript_cache")
        THIS_PROCESS.renew()  # a server that forks in C, such as uWSGI, does not call what Python calls in a child
        maker = _Maker(None if self._codec is None else _one_codec(self._codec))
        stores: dict[str, Any] = {part: self._store(maker, part, given) for part, given in self._parts.items()}
        if self._codec is not None and not maker.made_any:
            raise InvalidArgumentError("codec", "has nothing to work on: every part is a store of yours")
        try:
            await maker.open(self._clock)
            return AgentStore(**stores, clock=self._clock, closing=maker.close, transcript_cache=cache)
        except BaseException as error:
            await close_after(error, maker.close)
            raise

    def _store(self, maker: _Maker, part: str, given: str | Store | None) -> Store | None:
        if given is None:
            return None if self._url is None else maker.make(part, _checked_url("url", self._url))
        if isinstance(given, plugins.HOOKS[part].kind):
            return given
        text = _checked_url(part, given)
        store = maker.make(part, text)
        if store is None:
            raise UnsupportedOperationError(f"the plugin of {text.partition(':')[0]!r}", part)
        return store


def _one_codec(codec: AnyCodec) -> Codec:
    from perdure.at_rest.codecs import one_codec  # an application without codecs does not need it

    return one_codec(codec)


class _Maker:
    """Makes stores from URLs, and opens and closes what it made."""

    def __init__(self, codec: Codec | None) -> None:
        self._codec = codec
        self._resources = Resources()
        self._found: dict[str, tuple[plugins.Plugin, StoreURL]] = {}
        self._stores: list[Store] = []

    def make(self, part: str, text: str) -> Store | None:
        plugin, url = self._find(text)
        store = plugin.make(part, url, self._resources)
        if store is not None:
            if self._codec is not None:
                self._encode(store, self._codec, part, url)
            store.bind(max_record=url.max_record)
            self._stores.append(store)
        return store

    def _find(self, text: str) -> tuple[plugins.Plugin, StoreURL]:
        """Take a URL apart, load its plugin and check its options, once for all the parts that it is of."""
        if text not in self._found:
            url = StoreURL.parse(text)
            plugin = plugins.load(url.scheme)
            self._found[text] = plugin, plugin.check(url)
        return self._found[text]

    @property
    def made_any(self) -> bool:
        """Whether there is anything to open."""
        return bool(self._stores)

    def _encode(self, store: Store, codec: Codec, part: str, url: StoreURL) -> None:
        """Put the codec between a store and its journal. It is opened, and closed, as one more resource."""
        if not isinstance(store, JournalStore):
            raise UnsupportedOperationError(f"the plugin of {url.scheme!r}", f"codec (its {part} are no journal)")
        from perdure.at_rest.encoded_journal import EncodedJournal

        journal = store.journal
        if journal.namespace != url.namespace:  # what is encrypted is bound to it
            raise UnsupportedOperationError(f"the plugin of {url.scheme!r}", "codec (its journal has no namespace)")
        store.journal = self._resources.get(("codec", id(journal)), lambda: EncodedJournal(journal, codec))

    async def open(self, clock: Clock | None) -> None:
        await self._resources.open()
        for store in self._stores:
            store.bind(clock=clock)
            store._enter()  # from now on this loop and this process are the store's home

    async def close(self) -> None:
        for store in self._stores:
            store.seal()
        await self._resources.close()


def _checked_url(name: str, given: object) -> str:
    if isinstance(given, str):
        return given
    raise InvalidArgumentError(
        name, f"must be a URL such as 'sqlite:agent.db', or a store; not a {type(given).__name__}"
    )
