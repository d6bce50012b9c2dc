"""Bookies that are told any disk usage a test wants, and whose ledgers are in the metadata store."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.runtime.types import GIB
from tests.support.bookie_disks import KEY
from tests.support.serving import CONFIG, BookieMachines, Wire


class LyingWorld(BookieMachines):
    """*usage_of* says how full the file system below a directory is."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.usage_of: Callable[[str], DiskUsage] = lambda directory: DiskUsage(100 * GIB, 80 * GIB)
        # Tests choose the numbers of their ledgers: those that the store gives are higher.
        self.store.begin_numbers("/ledgers/idgen", 10_000)
        self.ledgers = LedgerStore(self.store)

    def bookie(self, config: BookieConfig = CONFIG, **changes: Any) -> Bookie:
        return Bookie(
            replace(config, **changes),
            self.store,
            self.clock,
            self.files,
            on_failure=self.failures.append,
            open_index=self.open_index,
            usage=lambda directory: self.usage_of(directory),
        )

    async def record_ledger(self, ledger_id: int, **changes: Any) -> None:
        """Put the metadata of a ledger on `bookie-1` into the store."""
        await self.ledgers.create_with_id(ledger_id, ledger_metadata(**changes))


def ledger_metadata(**changes: Any) -> LedgerMetadata:
    """Of an open ledger with one copy, on `bookie-1`."""
    values: dict[str, Any] = {
        "ensemble_size": 1,
        "write_quorum": 1,
        "ack_quorum": 1,
        "digest_type": DigestType.CRC32C,
        "segments": (Segment(0, ("bookie-1",)),),
        "state": LedgerState.OPEN,
    }
    return LedgerMetadata(**{**values, **changes})


async def add_all(bookie: Bookie, entries: Iterable[bytes]) -> None:
    """Add entries, all at once; every one of them is taken."""
    wire = await Wire.connect(bookie)
    count = 0
    for entry in entries:
        wire.send(v2.add_request_head(0, KEY, len(entry)) + entry)
        count += 1
    await wire.until(count, 60)
    assert [v2.parse_response(memoryview(frame))[1] for frame in wire.frames] == [0] * count
    wire.close()
