"""What nodes of auto-recovery report as lost, and what the auditor calls mended by itself."""

from dataclasses import replace

import pytest

from autorecovery.reporting import report_sweep
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import RANGES_MAX, Damage, Kind, Range, Report, Source, Stage
from tests.support.waiting import eventually
from tests.unit.autorecovery.test_node import Nodes, nodes_over


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_sweep, "_ROUND_S", 0.05)


async def reports(nodes: Nodes, ledger_id: int) -> list[Report]:
    return [one for one in await DamageReports(nodes.cluster.store).all() if one.ledger_id == ledger_id]


async def test_entries_that_no_living_bookie_has_are_reported_and_mended_when_the_bookie_is_back() -> None:
    async with nodes_over(3) as nodes:
        ledger_id = await nodes.written(4, ensemble=1, write=1, ack=1)
        (holder,) = (await nodes.writer.read_metadata(ledger_id)).bookies()
        await nodes.start("one")
        await nodes.cluster.kill(holder)
        await eventually(lambda: reports(nodes, ledger_id))
        (found,) = await reports(nodes, ledger_id)
        assert (found.kind, found.source, found.name) == (Kind.DATA_LOSS, Source.AUTO_RECOVERY, "one")
        assert (found.ranges, found.stage) == (((0, 3),), Stage.OPEN)
        await nodes.cluster.revive(holder)

        async def is_mended() -> bool:
            (one,) = await reports(nodes, ledger_id)
            return one.stage is Stage.MENDED

        await eventually(is_mended)
        (found,) = await reports(nodes, ledger_id)
        assert (found.by, found.note) == ("one", "every copy of the ledger was found again")


SAYS = "its entries can be read again"


@pytest.mark.parametrize("source", [Source.BROKER, Source.SCRUB, Source.CLIENT])
@pytest.mark.parametrize(
    ("kind", "ranges", "is_closed"),
    [
        (Kind.DATA_LOSS, ((0, 1), (3, 3)), True),
        (Kind.DATA_LOSS, ((3, 4),), False),  # 4 is behind the end
        (Kind.DATA_LOSS, (), False),  # it does not say what is lost
        (Kind.DATA_LOSS, tuple((2 * at, 2 * at) for at in range(RANGES_MAX)), False),  # and perhaps more
        (Kind.DATA_LOSS, ((0, 10**9),), False),
        (Kind.BAD_LEDGER, ((0, 0),), False),
    ],
)
async def test_entries_that_are_there_again_close_the_report_that_they_are_lost(
    source: Source, kind: Kind, ranges: tuple[Range, ...], is_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes_over(3) as nodes:
        ledger_id, other = await nodes.written(5), await nodes.written(1)
        record = await nodes.writer.ledgers.read(ledger_id)
        shorter = replace(record.metadata, last_entry_id=3)  # bookies have an entry behind the end
        await nodes.writer.ledgers.write(ledger_id, shorter, record.version)
        posted = DamageReports(nodes.cluster.store)
        report = await posted.post(Damage(ledger_id, kind, source, "b1", "no bookie has it", ranges), 1)
        last = await posted.post(Damage(other, Kind.DATA_LOSS, source, "b1", "no bookie has it", ((0, 0),)), 1)
        await nodes.start("one")
        await eventually(lambda: f"the report {last.id} (no bookie has it) is closed: {SAYS}" in caplog.messages)
        found = await posted.read(report.id)
        assert (found.stage, found.note) == ((Stage.MENDED, SAYS) if is_closed else (Stage.OPEN, ""))


async def test_entries_of_which_every_copy_is_gone_or_bad_stay_lost() -> None:
    async with nodes_over(3) as nodes:
        ledger_id, other = await nodes.written(4), await nodes.written(1)
        for bookie in nodes.cluster.bookies.values():
            stored = bookie.ledgers.get(ledger_id, {})
            stored.pop(1, None)
            if 2 in stored:
                stored[2] = bytes(stored[2])[:-1] + b"?"
        posted = DamageReports(nodes.cluster.store)
        of_these = [
            await posted.post(Damage(ledger_id, Kind.DATA_LOSS, Source.SCRUB, f"b{at}", "gone", ((0, at),)), 1)
            for at in (0, 1, 2)
        ]
        last = await posted.post(Damage(other, Kind.DATA_LOSS, Source.SCRUB, "b1", "gone", ((0, 0),)), 1)
        await nodes.start("one")

        async def is_mended() -> bool:
            return (await posted.read(last.id)).stage is Stage.MENDED

        await eventually(is_mended)
        stages = [(await posted.read(report.id)).stage for report in of_these]
        assert stages == [Stage.MENDED, Stage.OPEN, Stage.OPEN]


async def test_a_deleted_ledger_needs_no_mending_and_what_others_have_told_of_a_living_one_stays() -> None:
    async with nodes_over(3) as nodes:
        gone, lives = await nodes.written(2), await nodes.written(2)
        posted = DamageReports(nodes.cluster.store)
        for ledger_id in (gone, lives):
            await posted.post(Damage(ledger_id, Kind.BAD_LEDGER, Source.CLIENT, "ann", "odd"), 1)
        await nodes.writer.delete_ledger(gone)
        await nodes.start("one")

        async def is_mended() -> bool:
            (one,) = await reports(nodes, gone)
            return (one.stage, one.note) == (Stage.MENDED, "the ledger was deleted")

        await eventually(is_mended)
        (found,) = await reports(nodes, lives)
        assert found.stage is Stage.OPEN
