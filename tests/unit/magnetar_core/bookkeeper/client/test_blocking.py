import asyncio
from pathlib import Path

import pytest

from magnetar_core.bookkeeper.client.blocking import BlockingBookKeeper
from magnetar_core.bookkeeper.client.errors import BeyondLastConfirmed, NoSuchLedger
from magnetar_core.bookkeeper.metadata.embedded import EmbeddedStore
from magnetar_core.bookkeeper.metadata.store import MetadataError
from magnetar_core.runtime.clock import LoopClock
from tests.support.fake_bookies import fake_cluster

pytestmark = pytest.mark.both_loops


async def test_a_thread_without_a_loop_reads_beside_the_process_that_owns_the_metadata(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / "metadata", LoopClock())
    async with fake_cluster(3, store) as cluster:
        client = await cluster.client()
        handle = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for i in range(100):
            handle.append([b"%d" % i])
        await handle.wait_for(99)
        await handle.add(b"100")

        def read() -> list[bytes]:
            with BlockingBookKeeper.open(f"rocksdb:{tmp_path / 'metadata'}") as blocking:
                ledger = blocking.open_ledger(handle.ledger_id)
                assert not ledger.is_closed
                assert ledger.last_add_confirmed == ledger.read_last_confirmed() == 99
                assert ledger.last_recoverable_entry() == 100
                assert bytes(ledger.read_unconfirmed(100, 100)[0].payload) == b"100"
                with pytest.raises(BeyondLastConfirmed):
                    ledger.read(100, 100)
                batches = ledger.read_batches([0, 50], 50, 1_000_000)
                assert [len(batch) for batch in batches] == [50, 50]
                with pytest.raises(NoSuchLedger):
                    blocking.open_ledger(4711)
                return [bytes(entry.payload) for batch in batches for entry in batch]

        assert await asyncio.to_thread(read) == [b"%d" % i for i in range(100)]
    await store.close()


def test_opening_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MetadataError):
        BlockingBookKeeper.open(f"rocksdb:{tmp_path / 'nothing'}")
