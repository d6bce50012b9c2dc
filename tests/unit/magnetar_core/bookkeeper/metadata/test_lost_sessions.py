"""Answers of a metadata store whose session or disk fails in the middle of a change."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kazoo.protocol.states import KazooState

from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, OutcomeUnknown, SessionLost, StoreUnavailable
from magnetar_core.bookkeeper.metadata.stores.zookeeper import ZooKeeperStore
from magnetar_core.runtime.clock import LoopClock

pytestmark = pytest.mark.both_loops


async def test_an_ephemeral_node_of_a_session_that_has_ended_is_not_reported_as_made() -> None:
    """The caller was told that all its nodes are gone; if create then succeeds, it relies on a lost node."""
    store = ZooKeeperStore("127.0.0.1:1", "", 2.0, LoopClock())

    async def create(*arguments: Any, **options: Any) -> None:
        store._on_state(KazooState.LOST)
        store._on_state(KazooState.CONNECTED)

    store._create = create  # type: ignore[method-assign]
    with pytest.raises(SessionLost):
        await store.put("/owner", b"", NO_NODE, ephemeral=True)
    assert await store.put("/record", b"", NO_NODE) == 0
    await store.close()


@pytest.mark.parametrize(("ephemeral", "error"), [(False, StoreUnavailable), (True, SessionLost)])
async def test_what_was_decided_under_a_session_is_not_handed_over_once_kazoo_is_in_the_next_one(
    ephemeral: bool, error: type[Exception]
) -> None:
    """I62: kazoo reconnects on its own thread, and our loop has not heard of it yet."""
    store = ZooKeeperStore("127.0.0.1:1", "", 2.0, LoopClock())

    class Reconnected:
        def create_async(self, path: str, *_: Any, **__: Any) -> None:
            raise AssertionError(f"{path} was handed over")

    kazoo, store._client = store._client, Reconnected()
    store._connected.set()
    store._on_kazoo_state(KazooState.LOST)
    with pytest.raises(error, match="the session ended before this was sent"):
        await store.put("/lock", b"", NO_NODE, ephemeral=ephemeral)
    store._client = kazoo
    await store.close()


async def test_a_write_that_failed_may_have_happened(tmp_path: Path) -> None:
    """I57: a caller that believes nothing was changed would delete the data that the record names."""
    store = await EmbeddedStore.open(tmp_path / "tree", LoopClock())
    write = store._worker._work

    def fail(items: Any) -> None:
        write(items)
        raise OSError("the log was written and could not be synced")

    store._worker._work = fail
    with pytest.raises(OutcomeUnknown):
        await store.put("/record", b"x", NO_NODE)
    with pytest.raises(OutcomeUnknown):
        await store.get("/record")
    await store.close()


async def test_who_stops_does_not_wait_for_a_store_that_is_away_as_long_as_a_session_lives() -> None:
    """Neither the waiting request nor later requests delay the stop."""
    store = ZooKeeperStore("127.0.0.1:1", "", 600.0, LoopClock())
    waiting = asyncio.ensure_future(store.get("/waits"))
    await asyncio.sleep(0)
    store.hurry(0.05)
    async with asyncio.timeout(20):  # generous; a session is ten minutes here
        with pytest.raises(StoreUnavailable):
            await waiting
        with pytest.raises(StoreUnavailable):
            await store.get("/record")
        with pytest.raises(StoreUnavailable):
            await store.put("/record", b"")
    store.hurry(600.0)
    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable):
            await store.delete("/record")
    await store.close()
