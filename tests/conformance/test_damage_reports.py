"""Reports of damage, over every metadata store."""

import asyncio
from typing import Any

import pytest

from magnetar_core.bookkeeper.metadata.damage import reports as damage_reports
from magnetar_core.bookkeeper.metadata.damage import rules
from magnetar_core.bookkeeper.metadata.damage.reports import (
    DamageReporter,
    DamageReports,
    NoSuchReport,
    TooManyReports,
)
from magnetar_core.bookkeeper.metadata.damage.rules import BadReport, Damage, Kind, Source, Stage, WrongStage
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, StoreUnavailable
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import Corruption
from tests.conformance.test_metadata_store import Opener, reopen, store, zookeeper
from tests.support.faulty_store import FaultyStore
from tests.support.manual_clock import ManualClock
from tests.support.waiting import take_turns

__all__ = ["Opener", "reopen", "store", "zookeeper"]

PATH = "/ledgers/underreplication/magnetar/reports"


def damage(ledger_id: int = 7, name: str = "ann") -> Damage:
    return Damage(ledger_id, Kind.DATA_LOSS, Source.CLIENT, name, "gone", ((0, 3),))


async def test_reports_are_posted_listed_and_moved(store: MetadataStore) -> None:
    reports = DamageReports(store)
    assert await reports.all() == []
    second = await reports.post(damage(8), 10)
    first = await reports.post(damage(7), 20)
    assert await reports.all() == [first, second]
    again = await reports.post(damage(7), 30)
    assert (again.id, again.count) == (first.id, 2)
    seen = await reports.move(first.id, Stage.ACKNOWLEDGED, "bob", "I look at it", 40)
    assert await reports.read(first.id) == seen
    await reports.move(first.id, Stage.MENDED, "bob", "copied back", 50)
    with pytest.raises(WrongStage):
        await reports.move(first.id, Stage.MENDED, "bob", "", 60)
    assert (await reports.post(damage(7), 70)).stage is Stage.OPEN


async def test_posts_that_meet_are_all_counted(store: MetadataStore) -> None:
    reports = DamageReports(store)
    await asyncio.gather(*(reports.post(damage(), 10) for _ in range(6)))
    (found,) = await reports.all()
    assert found.count == 6


async def test_what_is_not_there_or_no_report_is_refused(store: MetadataStore) -> None:
    reports = DamageReports(store)
    for missing in ("7-data-loss-0123456789ab", "..", "", "a/b"):
        with pytest.raises(NoSuchReport):
            await reports.read(missing)
        with pytest.raises(NoSuchReport):
            await reports.move(missing, Stage.MENDED, "ann", "", 1)
    with pytest.raises(BadReport):
        await reports.post(damage(-1), 1)
    assert await reports.all() == []


async def test_so_many_reports_are_kept_and_mended_ones_make_room(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "REPORTS_MAX", 3)
    reports = DamageReports(store)
    ids = [(await reports.post(damage(ledger_id), 10)).id for ledger_id in range(3)]
    with pytest.raises(TooManyReports, match="none of them mended"):
        await reports.post(damage(3), 20)
    assert (await reports.post(damage(2), 20)).count == 2, "it is there already"
    await reports.move(ids[1], Stage.MENDED, "ann", "", 30)
    await reports.move(ids[0], Stage.MENDED, "ann", "", 31)
    await reports.post(damage(3), 40)
    assert [one.ledger_id for one in await reports.all()] == [0, 2, 3]


async def test_a_report_that_cannot_be_read_hides_no_other_and_is_written_anew(store: MetadataStore) -> None:
    """I60"""
    reports = DamageReports(store)
    damaged, good = await reports.post(damage(7), 10), await reports.post(damage(8), 10)
    await store.put(f"{PATH}/{damaged.id}", b"{}")
    assert await reports.all() == [good]
    with pytest.raises(Corruption, match=damaged.id):
        await reports.read(damaged.id)
    assert (await reports.post(damage(7), 20)).first_ms == 20
    assert len(await reports.all()) == 2


@pytest.mark.parametrize("fate", LostAnswer)
async def test_an_answer_that_is_lost_leaves_one_report(fate: LostAnswer) -> None:
    store = MemoryStore(LoopClock())
    reports = DamageReports(store)
    store.lose_next_answer(fate)
    found = await reports.post(damage(), 10)
    assert await reports.all() == [found]
    store.lose_next_answer(fate)
    moved = await reports.move(found.id, Stage.MENDED, "ann", "", 20)
    assert await reports.all() == [moved]


# ------------------------------------------------------------------------------- from inside a server


class Server:
    """A server that meets damage, on a clock that stands still; its store can be away."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.is_away = False
        self.writes = 0
        self.store = FaultyStore(MemoryStore(self.clock), self._step)
        self.reports = DamageReports(self.store.inner)
        self.reporter = DamageReporter(self.store, "/ledgers", Source.SCRUB, "b-1", self.clock)

    async def _step(self, what: str, path: str) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        if what == "put":
            self.writes += 1

    def meets(self, entry_id: int, ledger_id: int = 7) -> None:
        self.reporter.report(ledger_id, Kind.DATA_LOSS, [(entry_id, entry_id)], "no bookie has it")

    async def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            await take_turns()


async def test_the_same_damage_is_written_once_a_minute_with_how_often_it_was_met() -> None:
    server = Server()
    for entry_id in range(5):
        server.meets(entry_id)
    await take_turns()
    (found,) = await server.reports.all()
    assert (found.source, found.name, found.count, found.ranges) == (Source.SCRUB, "b-1", 5, ((0, 4),))
    for entry_id in range(5, 9):
        server.meets(entry_id)
        await server.pass_s(10)
    assert server.writes == 1
    server.meets(0, ledger_id=8)
    await take_turns()
    assert server.writes == 2, "another ledger does not wait for the first one"
    await server.pass_s(30)
    assert server.writes == 3
    found, _ = await server.reports.all()
    assert (found.count, found.ranges) == (9, ((0, 8),))
    await server.reporter.stop()


async def test_a_store_that_is_away_delays_a_report_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.is_away = True
    for ledger_id in range(3):
        server.meets(0, ledger_id)
    await server.pass_s(130)
    server.meets(1, 0)
    assert len([record for record in caplog.records if "is not reported yet" in record.message]) == 1
    server.is_away = False
    await server.pass_s(61)
    assert [(one.ledger_id, one.count, one.ranges) for one in await server.reports.all()] == [
        (0, 2, ((0, 1),)), (1, 1, ((0, 0),)), (2, 1, ((0, 0),)),
    ]  # fmt: skip
    await server.reporter.stop()


async def test_so_much_damage_waits_to_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(damage_reports, "QUEUE_MAX", 3)
    server = Server()
    for ledger_id in range(9):
        server.meets(0, ledger_id)
    await take_turns()
    assert [one.ledger_id for one in await server.reports.all()] == [0, 1, 2]
    assert len([record for record in caplog.records if "are left out" in record.message]) == 1
    await server.reporter.stop()


async def test_reports_that_do_not_fit_and_defects_break_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "REPORTS_MAX", 1)
    server = Server()
    server.meets(0, 1)
    server.meets(0, 2)
    server.meets(0, -1)
    await take_turns()
    await server.pass_s(61)
    server.meets(1, 1)
    await take_turns()
    (found,) = await server.reports.all()
    assert (found.ledger_id, found.count) == (1, 2)
    await server.reporter.stop()
    server.meets(0, 1)  # after the end it is left out


async def test_a_reporter_that_is_stopped_while_the_store_hangs_ends() -> None:
    server = Server()

    async def hang(*_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    server.store.on_step = hang
    server.meets(0)
    await take_turns()
    await server.reporter.stop()
    assert await server.reports.all() == []
