"""The cluster that the options name, for commands that ask its metadata store and its bookies, not a broker."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from magnetar.cli.common.options import admin_option, metadata_of, metadata_option
from magnetar.inspect.inspector import SESSION_S, Inspector, inspecting
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.bookkeeper.metadata.stores.url import open_store, split_service_uri
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.process.daemon import new_clock

T = TypeVar("T")


class OpenStore(NamedTuple):
    """The metadata store of a cluster."""

    store: MetadataStore
    root: str
    clock: Clock


class ChosenCluster:
    """The cluster of one command. Nothing is asked before one of the methods is called."""

    def __init__(self, metadata_url: str | None, admin_url: str, tls_directory: str | None) -> None:
        self._metadata_url = metadata_url
        self._admin_url = admin_url
        self.tls_directory = tls_directory

    @functools.cached_property
    def _url(self) -> str:
        return metadata_of(self._metadata_url, self._admin_url)

    def ask(self, work: Callable[[Inspector], Awaitable[T]], *, changes: bool = False) -> T:
        """The result of *work*. *changes*: the store is opened to be written, which a standalone that runs refuses.
        Raises MagnetarError."""
        url = self._url

        async def go() -> T:
            async with inspecting(url, self.tls_directory, changes=changes) as inspector:
                return await work(inspector)

        return asyncio.run(go())

    def on_store(self, work: Callable[[OpenStore], Awaitable[T]], *, changes: bool = False) -> T:
        """The result of *work*, which needs no bookies. *changes*: as in `ask`. Raises MagnetarError."""
        url = self._url
        place, root = split_service_uri(url) if "://" in url else (url, "/ledgers")

        async def go() -> T:
            clock = new_clock()
            store = await open_store(place, clock, session_timeout_s=SESSION_S, read_only=not changes)
            try:
                return await work(OpenStore(store, root, clock))
            finally:
                await store.close()

        return asyncio.run(go())


def with_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """The options that name a cluster. *command* gets a ChosenCluster as its first argument, not their values."""

    @functools.wraps(command)
    def run(metadata_url: str | None, admin_url: str, tls_directory: str | None, **options: Any) -> None:
        command(ChosenCluster(metadata_url, admin_url, tls_directory), **options)

    return admin_option(metadata_option(run))
