"""Entries that no bookie can give are told of; silence is no damage, and neither is a ledger that is gone."""

from collections.abc import Sequence

import pytest

from magnetar_core.bookkeeper.client.errors import BookieUnavailable, DigestMismatch, NoSuchEntry, NoSuchLedger
from magnetar_core.bookkeeper.metadata.damage.rules import Kind
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.errors import StorageUnavailable
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.support.waiting import settle
from tests.unit.managed_ledger.test_ledger import NAME, Recorder, payloads


class World:
    """A topic of three entries, none of them in memory, and what was told of it."""

    def __init__(self) -> None:
        clock = LoopClock()
        self.bookkeeper = MemoryBookKeeper()
        self.told: list[tuple[int, Kind, list[tuple[int, int]], str]] = []
        self.failures: dict[str, Exception] = {}
        self.factory = ManagedLedgerFactory(
            self.bookkeeper.client, MemoryStore(clock), clock, cache_bytes_max=0, on_damage=self._on_damage
        )
        self.bookkeeper.on_step = self._on_step
        self.ledger: ManagedLedger
        self.recorder = Recorder()

    async def open(self) -> Position:
        """Returns the position of the second entry."""
        self.ledger = await self.factory.open(NAME)
        self.ledger.listener = self.recorder
        self.ledger.append(payloads(0, 3), [0, 1, 2])
        await settle()
        return self.recorder.appended[1][0]

    async def read(self, position: Position) -> bytes:
        found = self.ledger.read(position, 1, 1)
        (entry,) = found if isinstance(found, Sequence) else await found
        return bytes(entry.data)

    def _on_damage(self, ledger_id: int, kind: Kind, ranges: Sequence[tuple[int, int]], text: str) -> None:
        self.told.append((ledger_id, kind, list(ranges), text))

    async def _on_step(self, what: str, ledger_id: int) -> None:
        failure = self.failures.pop(what, None)
        if failure is not None:
            raise failure


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (NoSuchEntry("none has it"), Kind.DATA_LOSS),
        (NoSuchLedger("none has it"), Kind.DATA_LOSS),
        (DigestMismatch("each copy is damaged"), Kind.BAD_LEDGER),
    ],
)
async def test_what_no_bookie_can_give_is_told_of_with_its_topic(failure: Exception, kind: Kind) -> None:
    world = World()
    position = await world.open()
    world.failures["read"] = failure
    with pytest.raises(StorageUnavailable):
        await world.read(position)
    ((ledger_id, told, ranges, text),) = world.told
    assert (ledger_id, told, ranges) == (position.ledger_id, kind, [(position.entry_id, position.entry_id)])
    assert text.startswith(NAME)
    assert await world.read(position) == b"entry 1"
    assert len(world.told) == 1
    await world.factory.close()


@pytest.mark.parametrize(
    ("what", "failure"), [("read", BookieUnavailable("silent")), ("open", NoSuchLedger("its record is gone"))]
)
async def test_silence_and_a_record_that_is_gone_are_not_told_of(what: str, failure: Exception) -> None:
    world = World()
    position = await world.open()
    world.failures[what] = failure
    with pytest.raises(StorageUnavailable):
        await world.read(position)
    assert world.told == []
    await world.factory.close()
