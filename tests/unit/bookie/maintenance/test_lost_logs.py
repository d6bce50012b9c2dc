"""Entry logs that are missing, cut or other ones: told of at the start, fetched from other copies, or given up."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest

from bookie.bookie import Bookie
from bookie.maintenance import lost_logs
from bookie.maintenance.lost_logs import LostLedger
from bookie.maintenance.rebuild.offline import known_logs, rebuild_index
from bookie.storage import log_check
from bookie.storage.known import LogNote, log_notes
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import RecoveryFailed
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import Kind, Report
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerState, Segment
from magnetar_core.bookkeeper.metadata.stores.store import StoreUnavailable
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from tests.support.bookie_disks import CODEC, KEY, stored_entry
from tests.support.bookie_world import LyingWorld, add_all
from tests.support.serving import HurriedClock, Wire
from tests.support.waiting import eventually

ENOENTRY, EIO = 2, 101
DIRECTORY: Final = "/bookie/ledgers/current"
TOPIC: Final = "persistent://public/default/orders und so"
OWNED: Final = {"custom_metadata": (("pulsar/managed-ledger", b"public/default/persistent/orders+und+so"),)}
COPIES: Final = {
    "ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2, "segments": (Segment(0, ("bookie-1", "bookie-2")),),
}  # fmt: skip
SECOND: Final[dict[str, Any]] = {
    "bookie_id": "bookie-2", "journal_directories": ("/b2/journal",), "ledger_directories": ("/b2/ledgers",),
}  # fmt: skip


def closed(last_entry_id: int, **changes: Any) -> dict[str, Any]:
    return {"state": LedgerState.CLOSED, "last_entry_id": last_entry_id, "length": 100, **changes}


def entries(ledger_id: int, ids: range) -> list[bytes]:
    return [stored_entry(ledger_id, entry_id, b"p" * 50) for entry_id in ids]


class GoneWorld(LyingWorld):
    """Ledgers on `bookie-1`, whose logs go."""

    def lose(self, log_id: int) -> None:
        self.files.remove(f"{DIRECTORY}/{log_id:x}.log")

    def cut(self, log_id: int, size_bytes: int) -> None:
        file = self.files.open(f"{DIRECTORY}/{log_id:x}.log", writable=True)
        file.truncate(size_bytes)

    def notes(self) -> dict[int, LogNote]:
        return log_notes(self.indexes[DIRECTORY].notes())

    async def reports(self) -> list[Report]:
        return await DamageReports(self.store).all()

    async def write(self, runs: dict[int, range], **changes: Any) -> None:
        """A life of the bookie, whose entries are a log of their own."""
        async with self.serving(**changes) as bookie:
            for ledger_id, ids in runs.items():
                await add_all(bookie, entries(ledger_id, ids))

    def rebuild(self) -> tuple[str, ...]:
        """The rebuild of a stopped bookie's index; returns its problems."""

        def opener() -> Any:
            return self.indexes[DIRECTORY]

        return rebuild_index(self.files, DIRECTORY, opener, {"locations"}, 1, known=known_logs(opener)).problems


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> GoneWorld:
    monkeypatch.setattr(lost_logs, "AGAIN_S", 1.0)
    return GoneWorld(HurriedClock())


@asynccontextmanager
async def two(world: GoneWorld) -> AsyncIterator[tuple[Bookie, Bookie]]:
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(world.serving(**SECOND))
        yield await stack.enter_async_context(world.serving()), second


def status(bookie: Bookie) -> Any:
    return bookie.parts.lost_logs.status()


async def settled(bookie: Bookie) -> Any:
    await eventually(lambda: not status(bookie).is_running)
    return status(bookie)


def sample(bookie: Bookie, name: str) -> float:
    return next(one.value for one in bookie.operations.metrics() if one.name == f"magnetar_bookie_{name}")


# -- a single copy


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "another"])
async def test_what_a_log_had_is_named_by_topic_and_count_and_the_rest_is_served(
    world: GoneWorld, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    await world.write({1: range(5), 2: range(3)})
    await world.write({1: range(5, 8)})
    await world.record_ledger(1, **closed(7, **OWNED))
    await world.record_ledger(2, **closed(2))
    if how == "missing":
        world.lose(0)
    elif how == "another":
        header, record = world.files.open(f"{DIRECTORY}/1.log").read_at(0, 1024), entries(7, range(1))[0]
        world.cut(0, 0)
        world.files.open(f"{DIRECTORY}/0.log", writable=True).append([header, record * 20])
    else:
        world.cut(0, 0 if how == "empty" else 1024 + 10)
    async with world.serving() as bookie:
        found = await settled(bookie)
        words = {"missing": "is missing", "empty": "is empty", "cut": "is cut", "another": "is another log"}[how]
        assert list(found.logs) == [f"{DIRECTORY}/0.log"]
        assert found.logs[f"{DIRECTORY}/0.log"].startswith(words)
        assert any("0.log " + words in one for one in caplog.messages), "it is said at the start"
        assert (found.lost_entries, found.waiting_entries) == (8, 0)
        assert set(found.ledgers) == {LostLedger(1, TOPIC, 5), LostLedger(2, "", 3)}
        assert (sample(bookie, "lost_logs"), sample(bookie, "lost_logs_entries_lost")) == (1, 8)
        first, second = await world.reports()
        assert (first.ledger_id, first.kind, first.ranges) == (1, Kind.DATA_LOSS, ((0, 4),))
        assert f"{TOPIC}: 5 entries are lost, they stood in 0.log of bookie bookie-1, which {words}" in first.text
        assert (second.ledger_id, second.ranges) == (2, ((0, 2),))
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 7) == stored_entry(1, 7, b"p" * 50)
        assert await wire.read(1, 0) == ENOENTRY  # so that its consumers can pass over it
    caplog.clear()
    async with world.serving() as bookie:  # it is told of again, and not counted or reported again
        assert not status(bookie).is_running
        assert status(bookie).lost_entries == 8
        assert any("8 entries of it were lost with it" in one for one in caplog.messages)
        assert [one.count for one in await world.reports()] == [1, 1]
    problem = world.rebuild()[0]
    assert f"{DIRECTORY}/0.log {words}" in problem
    assert "8 entries of it were reported as lost" in problem
    caplog.clear()
    async with world.serving() as bookie:
        assert status(bookie).logs == {}, "the rebuild ends it"


async def test_until_it_is_told_of_a_lost_entry_is_an_error(world: GoneWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that cannot be written keeps the entry from being called absent."""
    await world.write({1: range(3)})
    await world.record_ledger(1, **closed(2))
    world.lose(0)
    post = DamageReports.post

    async def refuse(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(DamageReports, "post", refuse)
    async with world.serving() as bookie:
        found = await settled(bookie)
        assert found.failed == "no answer"
        wire = await Wire.connect(bookie)
        for _ in range(2):
            assert await wire.read(1, 1) == EIO
        monkeypatch.setattr(DamageReports, "post", post)
        await eventually(lambda: status(bookie).lost_entries == 3)
        assert await wire.read(1, 1) == ENOENTRY
        assert len(await world.reports()) == 1


async def test_a_topic_whose_open_ledger_lost_its_end_goes_on_behind_what_is_left(world: GoneWorld) -> None:
    for number in range(3):
        await world.write({1: range(5 * number, 5 * number + 5)})
    await world.record_ledger(1, **OWNED)
    world.lose(0)  # the beginning
    world.lose(2)  # and the end
    async with world.serving() as bookie:
        await settled(bookie)
        client = BookKeeper(world.store, world.clock)
        await client.open()
        handle = await client.open_ledger(1, password=b"", recovery=True)
        assert handle.last_add_confirmed == 9
        assert [one.entry_id for one in await handle.read_batch(5, 10, 1 << 20)] == [5, 6, 7, 8, 9]
        await client.close()
        assert status(bookie).ledgers == (LostLedger(1, TOPIC, 10),)


async def test_a_log_that_comes_back_is_taken_up_by_a_rebuild(
    world: GoneWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.write({1: range(3)})
    await world.record_ledger(1, **closed(2))
    kept = world.files.open(f"{DIRECTORY}/0.log")
    data = kept.read_at(0, 10_000)
    world.lose(0)
    async with world.serving() as bookie:
        assert (await settled(bookie)).lost_entries == 3
    world.files.create(f"{DIRECTORY}/0.log").append([data])
    async with world.serving() as bookie:
        assert status(bookie).logs == {}
        assert any("0.log is whole again" in one for one in caplog.messages)
        bookie.parts.rebuild.trigger()
        await eventually(lambda: not bookie.parts.rebuild.status().is_running)
        assert bookie.parts.rebuild.status().entries_put_right == 3
        assert await (await Wire.connect(bookie)).read(1, 2) == stored_entry(1, 2, b"p" * 50)
    caplog.clear()
    async with world.serving():
        assert not [one for one in caplog.messages if ".log" in one]


async def test_a_log_that_the_disk_refuses_is_told_of_and_not_given_up(
    world: GoneWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.write({1: range(3)})
    await world.record_ledger(1, **closed(2))
    opened = world.files.open

    def refuse(path: str, *, writable: bool = False) -> Any:
        if path.endswith("/0.log"):
            raise OSError(5, "Input/output error", path)
        return opened(path, writable=writable)

    monkeypatch.setattr(world.files, "open", refuse)
    async with world.serving() as bookie:
        assert not status(bookie).is_running
        (problem,) = status(bookie).logs.values()
        assert problem.startswith("cannot be read: [Errno 5]")
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 0) == EIO
        monkeypatch.setattr(world.files, "open", opened)
        assert await wire.read(1, 0) == stored_entry(1, 0, b"p" * 50)
    async with world.serving() as bookie:
        assert status(bookie).logs == {}


# -- other copies


async def test_what_other_bookies_have_comes_back_and_is_never_called_absent(world: GoneWorld) -> None:
    async with two(world) as bookies:
        for bookie in bookies:
            await add_all(bookie, entries(1, range(5)))
    await world.record_ledger(1, **COPIES, **closed(4))
    world.lose(0)
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        await eventually(lambda: status(bookie).waiting_entries == 5)  # the other one is away
        assert await wire.read(1, 3) == EIO
        async with world.serving(**SECOND):
            await eventually(lambda: status(bookie).restored_entries == 5)
        assert await wire.read(1, 3) == stored_entry(1, 3, b"p" * 50)
        await settled(bookie)
        assert (status(bookie).lost_entries, status(bookie).logs) == (0, {})
        assert await world.reports() == []
    async with world.serving() as bookie:
        assert status(bookie).logs == {}


async def test_a_recovery_finds_the_end_on_the_other_copy_or_fails(world: GoneWorld) -> None:
    async with two(world) as bookies:
        for bookie in bookies:
            await add_all(bookie, entries(1, range(5)))
    await world.record_ledger(1, **COPIES)
    world.lose(0)
    client = BookKeeper(world.store, world.clock)
    await client.open()
    async with world.serving() as bookie:
        await settled(bookie)
        wire = await Wire.connect(bookie)
        for entry_id in (v2.LAST_ENTRY, 0, 4):
            assert (await wire.ask(v2.read_request(1, entry_id, v2.FLAG_DO_FENCING, KEY)))[1] == EIO
        with pytest.raises(RecoveryFailed):
            await client.open_ledger(1, password=b"", recovery=True)
        assert status(bookie).waiting_entries == 5
        async with world.serving(**SECOND):
            fresh = BookKeeper(world.store, world.clock)  # which does not rest from a bookie that was away
            await fresh.open()
            handle = await fresh.open_ledger(1, password=b"", recovery=True)
            assert handle.last_add_confirmed == 4
            await fresh.close()
            await eventually(lambda: status(bookie).logs == {})
        for entry_id in range(5):
            found = await wire.read(1, entry_id)
            assert isinstance(found, bytes)
            assert CODEC.open(found, 1, entry_id).payload == b"p" * 50
    await client.close()
    assert await world.reports() == []


async def test_what_nobody_has_of_an_open_ledger_with_other_bookies_waits_until_it_is_closed(world: GoneWorld) -> None:
    """The other bookie has answered nothing yet that the writer relies on: it may be behind."""
    async with two(world) as (first, _):
        await add_all(first, entries(1, range(5)))
    await world.record_ledger(1, **{**COPIES, "ack_quorum": 1})
    world.lose(0)
    async with two(world) as (bookie, other):
        await add_all(other, entries(1, range(3)))
        await eventually(lambda: (status(bookie).restored_entries, status(bookie).waiting_entries) == (3, 2))
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 3) == EIO
        assert await world.reports() == []
        found = await world.ledgers.read(1)
        await world.ledgers.write(1, found.metadata.in_recovery().closed(4, 10), found.version)
        await eventually(lambda: status(bookie).lost_entries == 2)
        assert await wire.read(1, 3) == ENOENTRY


async def test_what_belongs_elsewhere_by_now_and_what_was_deleted_is_not_missed(world: GoneWorld) -> None:
    await world.write({1: range(3), 2: range(3), 3: range(5)})
    await world.record_ledger(1, **closed(2, segments=(Segment(0, ("bookie-9",)),)))
    await world.record_ledger(3, **closed(1))
    world.lose(0)
    async with world.serving() as bookie:
        found = await settled(bookie)
        assert found.ledgers == (LostLedger(3, "", 2),)  # 2 to 4 stand behind its end
        assert [one.ledger_id for one in await world.reports()] == [3]


# -- notes


async def test_logs_without_notes_get_them_and_those_that_are_missing_are_found(world: GoneWorld) -> None:
    """As an older version, or Apache's bookie, leaves them."""
    for ledger_id in (1, 2, 3):
        await world.write({ledger_id: range(3)})
        await world.record_ledger(ledger_id, **closed(2))
    world.indexes[DIRECTORY].put_notes(dict.fromkeys(world.notes()))
    world.lose(1)
    async with world.serving() as bookie:
        found = await settled(bookie)
        assert found.logs == {f"{DIRECTORY}/1.log": "is missing"}
        assert found.ledgers == (LostLedger(2, "", 3),)
    notes = world.notes()
    assert [notes[log_id][1:] for log_id in (0, 1, 2)] == [(1, 2, 0, False), (2, 0, 3, True), (3, 2, 0, False)]


async def test_reads_of_what_is_lost_are_one_line_a_ledger(world: GoneWorld, caplog: pytest.LogCaptureFixture) -> None:
    await world.write({1: range(100)})
    await world.record_ledger(1)
    async with world.serving() as bookie:
        world.cut(0, 4_000)
        wire = await Wire.connect(bookie)
        assert {await wire.read(1, entry_id) for entry_id in range(50, 100)} == {EIO}
    lines = [record.getMessage() for record in caplog.records if record.name == "bookie.serving.server"]
    assert len(lines) == 2, lines
    assert lines[0].startswith("ledger 1: entry 50 cannot be read: ")
    assert lines[1].startswith("ledger 1: 49 more like it; the last one: entry 99 cannot be read: ")


async def test_a_log_that_garbage_collection_removes_is_not_missed(world: GoneWorld) -> None:
    await world.write({1: range(3)})
    await world.write({2: range(3)})
    await world.record_ledger(2)
    async with world.serving(gc_metadata_rate=1_000_000) as bookie:
        for _ in range(2):  # a ledger is gone when two rounds have found it so
            bookie.parts.collector.trigger(accept_listing=True)
            await bookie.parts.collector.settled()
        assert not world.files.exists(f"{DIRECTORY}/0.log")
    async with world.serving() as bookie:
        assert status(bookie).logs == {}
        assert not status(bookie).is_running


# -- limits


async def test_so_many_entries_are_decided_and_told_of_at_a_time(
    world: GoneWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_logs, "DECIDED_AT_ONCE", 4)
    monkeypatch.setattr("bookie.maintenance.rebuild.location_check.JOB_LOCATIONS", 3)
    await world.write({1: range(10)})
    await world.record_ledger(1, **closed(9))
    world.lose(0)
    async with world.serving() as bookie:
        assert (await settled(bookie)).ledgers == (LostLedger(1, "", 10),)
    (report,) = await world.reports()
    assert (report.count, report.ranges) == (2, ((0, 9),))
    assert "10 entries are lost" in report.text


async def test_so_many_ledgers_and_logs_are_named(
    world: GoneWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lost_logs, "NAMED_MAX", 2)
    monkeypatch.setattr(log_check, "NAMED_MAX", 2)
    for ledger_id in (1, 2, 3):
        await world.write({ledger_id: range(2)})
        await world.record_ledger(ledger_id, **closed(1))
    for log_id in range(3):
        world.lose(log_id)
    async with world.serving() as bookie:
        assert sum(".log is missing" in one for one in caplog.messages) == 2
        assert any("3 logs are missing or bad in all" in one for one in caplog.messages)
        found = await settled(bookie)
        assert (found.lost_entries, len(found.ledgers), len(found.logs)) == (6, 2, 3)
    assert len(await world.reports()) == 3
