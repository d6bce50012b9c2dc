"""Lists of entries: what a bookie says, and that everything but a list or an explicit no is unknown."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import BookieUnavailable, OperationTimeout, UnknownLedgerState
from magnetar_core.bookkeeper.client.reading import entry_lists
from magnetar_core.bookkeeper.wire.codec_v2 import V2Error
from magnetar_core.bookkeeper.wire.codec_v3 import GET_LIST_OF_ENTRIES
from magnetar_core.bookkeeper.wire.framing import LENGTH
from magnetar_core.runtime.types import Buffer
from tests.support.fake_bookies import FakeBookie, FakeCluster, fake_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def bookie(cluster: FakeCluster) -> FakeBookie:
    return cluster.bookies["bookie-0"]


@pytest.fixture
async def client(cluster: FakeCluster) -> BookKeeper:
    return await cluster.client(ClientConfig(timeout_s=0.2))


async def test_a_bookie_lists_what_it_has_and_of_an_unknown_ledger_nothing(
    bookie: FakeBookie, client: BookKeeper
) -> None:
    bookie.ledgers[7] = dict.fromkeys((0, 1, 3, 4, 6, 7), b"entry")
    assert await client.entry_list("bookie-0", 7) == [(0, 6, 2, 3)]
    bookie.ledgers[8] = {}
    assert await client.entry_list("bookie-0", 8) == []
    assert await client.entry_list("bookie-0", 9) == []
    while bookie.connections:
        await asyncio.sleep(0.005)  # each question ends its connection


async def test_a_refusal_is_told_and_proves_nothing(bookie: FakeBookie, client: BookKeeper) -> None:
    bookie.refuse = lambda *_: V2Error.EUNKNOWNLEDGERSTATE
    with pytest.raises(UnknownLedgerState, match="bookie bookie-0, list of entries of ledger 7"):
        await client.entry_list("bookie-0", 7)


async def test_a_bookie_that_was_silent_is_left_alone_for_a_while(
    bookie: FakeBookie, client: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie.ledgers[7] = {0: b"entry"}
    bookie.knows_lists = False
    with pytest.raises(OperationTimeout, match=r"no answer within 0\.2 s; Apache's bookies with DbLedgerStorage never"):
        await client.entry_list("bookie-0", 7)
    bookie.knows_lists = True
    for ledger_id in (7, 8):
        with pytest.raises(OperationTimeout, match="did not answer when it was asked"):
            await client.entry_list("bookie-0", ledger_id)
    assert [one for one, *_ in bookie.requests] == [GET_LIST_OF_ENTRIES]
    lists = client._entry_lists
    assert lists is not None
    lists._silent_until_s["bookie-0"] -= entry_lists._SILENT_S
    assert await client.entry_list("bookie-0", 7) == [(0, 0, 1, 0)]


async def test_a_bookie_that_cannot_be_reached_or_talks_nonsense_is_unknown(
    cluster: FakeCluster, bookie: FakeBookie, client: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nonsense(frame: memoryview) -> list[Buffer]:
        return [LENGTH.pack(3) + b"abc"]

    monkeypatch.setattr(bookie, "answer", nonsense)
    with pytest.raises(BookieUnavailable, match="3 bytes that are no Response"):
        await client.entry_list("bookie-0", 7)
    await cluster.kill("bookie-0", unregister=False)
    with pytest.raises(BookieUnavailable, match="bookie bookie-0 cannot be reached"):
        await client.entry_list("bookie-0", 7)
