"""One bookie's folder under the software of both houses in turn: journal, entry logs, index, cookie."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from tests.support.mixed_cluster import Brand, MixedCluster, Server

OTHER: dict[Brand, Brand] = {"ours": "apache", "apache": "ours"}
NAMES = {"ours": "ours", "apache": "Apache's"}


class Ledgers:
    """The entries that were written and confirmed under all owners of the folder."""

    def __init__(self, metadata_url: str) -> None:
        self._url = metadata_url
        self.written: dict[int, list[bytes]] = {}
        self.open: dict[int, list[bytes]] = {}

    async def write(self, label: str, bookie: Server, number: int) -> None:
        """A closed ledger, and one that is left open; then the bookie ends by signal *number*."""
        clock = LoopClock()
        store = await open_store(self._url, clock, session_timeout_s=10.0)
        client = BookKeeper(store, clock, ClientConfig())
        await client.open()
        for closed in (True, False):
            ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            payloads = [f"{label} {entry} ".encode() + b"." * (entry * 7 % 3000) for entry in range(400)]
            ledger.append(payloads[:-1])
            await ledger.add(payloads[-1])
            (self.written if closed else self.open)[ledger.ledger_id] = payloads
            if closed:
                await ledger.close()
        await asyncio.to_thread(bookie.stop, number)
        await client.close()
        await store.close()

    async def check(self) -> None:
        """Everything confirmed is there; what was left open is recovered, and is closed from then on."""
        clock = LoopClock()
        store = await open_store(self._url, clock, session_timeout_s=10.0)
        client = BookKeeper(store, clock, ClientConfig())
        try:
            await client.open()
            for ledger_id in list(self.open):
                await client.open_ledger(ledger_id, recovery=True)
                self.written[ledger_id] = self.open.pop(ledger_id)
            for ledger_id, payloads in self.written.items():
                ledger = await client.open_ledger(ledger_id, recovery=False)
                entries = await ledger.read(0, ledger.last_add_confirmed)
                assert [bytes(entry.payload) for entry in entries] == payloads, ledger_id
                with pytest.raises(BookKeeperError):
                    await ledger.read_unconfirmed(len(payloads), len(payloads))
        finally:
            await client.close()
            await store.close()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("first", ["ours", "apache"])
def test_the_folder_goes_over_and_back(
    tmp_path: Path, cell: Callable[[str, str], None], first: Brand, end: signal.Signals
) -> None:
    second = OTHER[first]
    how = "after a clean stop" if end == signal.SIGTERM else "after kill -9"
    cell("a bookie's folder", f"{NAMES[first]}, then {NAMES[second]}, and back, {how}")
    with MixedCluster(tmp_path / "cluster") as cluster:
        cluster.start_zookeeper()
        cluster.initialise(first)
        bookie = cluster.add("bookie", first)
        ledgers = Ledgers(cluster.metadata_url)
        asyncio.run(ledgers.write("first", bookie, end))
        for brand in (second, first):
            bookie = cluster.other_brand(bookie, brand)
            bookie.start()
            asyncio.run(ledgers.check())
            asyncio.run(ledgers.write(f"then {brand}", bookie, end))
        bookie.start()
        asyncio.run(ledgers.check())
        assert len(ledgers.written) == 6
