"""What nodes of auto-recovery report as lost, and what the auditor calls mended by itself."""

import pytest

from autorecovery.reporting import report_sweep
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import Damage, Kind, Report, Source, Stage
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
