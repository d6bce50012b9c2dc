"""Copies in too few racks or regions: found, told of, and moved where that is switched on."""

import re
from dataclasses import replace
from functools import partial

import pytest

from autorecovery.audit import placement_check
from autorecovery.audit.placement_check import (
    PlacementCheck,
    PlacementStatus,
    Progress,
    decode_progress,
    encode_progress,
)
from autorecovery.config import AutoRecoveryConfig
from autorecovery.ledgers.index import IndexedLedger
from autorecovery.repair.outcome import Hindrance
from magnetar_core.bookkeeper.client.placing.isolation import Isolation
from magnetar_core.bookkeeper.client.placing.regions import POLICY_CLASS
from magnetar_core.bookkeeper.metadata.bookies.racks import RackRecords
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.marks.underreplication import PeriodicCheck
from magnetar_core.runtime.config import load
from magnetar_core.runtime.types import ConfigurationError
from tests.support.waiting import eventually, settle
from tests.unit.autorecovery.test_node import CLIENT, Nodes, nodes_over

CHECKING = AutoRecoveryConfig(open_grace_ms=200, retry_ms_max=1_000, placement_check_s=3_600)
MOVING = AutoRecoveryConfig(open_grace_ms=200, retry_ms_max=1_000, placement_check_s=3_600, mends_placement=True)


async def put_racks(nodes: Nodes, *racks: str) -> None:
    """`bookie-0` into the first of *racks* and so on."""
    records = RackRecords(nodes.cluster.store)
    for number, rack in enumerate(racks):
        await records.put("default", f"bookie-{number}", {"rack": rack})
    await eventually(lambda: len(nodes.writer.racks.racks) == len(racks))


async def is_adhering(nodes: Nodes, ledger_id: int) -> bool:
    metadata = await nodes.writer.read_metadata(ledger_id)
    everybody = nodes.writer.bookies.available
    topology = nodes.writer.topology()
    return all(
        topology.is_adhering(segment.ensemble, metadata.write_quorum, everybody) for segment in metadata.segments
    )


async def test_on_one_host_nothing_is_a_violation_and_nothing_is_marked() -> None:
    async with nodes_over(4) as nodes:
        await nodes.written(5)
        node = await nodes.start("one", MOVING)
        await eventually(lambda: node.placement_check.status.last_ended_ms is not None)
        status = node.placement_check.status
        assert (status.looked_at, status.violating, status.marked, status.named) == (1, 0, 0, {})


async def test_violations_are_told_and_left_alone_unless_moving_is_switched_on() -> None:
    async with nodes_over(3) as nodes:
        ledgers = [await nodes.written(5, ensemble=2, write=2) for _ in range(20)]
        is_open = await nodes.writer.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await put_racks(nodes, "/a", "/a", "/b")
        bad = [ledger_id for ledger_id in ledgers if not await is_adhering(nodes, ledger_id)]
        node = await nodes.start("one", CHECKING)
        await eventually(lambda: node.placement_check.status.last_ended_ms is not None)
        status = node.placement_check.status
        assert (status.looked_at, status.violating, status.marked) == (20, len(bad), 0)
        assert sorted(status.named) == bad
        assert all("in 1 rack (/a) instead of 2" in text for text in status.named.values())
        assert await node.marks.last_checked_ms(PeriodicCheck.PLACEMENT) == status.last_ended_ms
        assert [ledger_id for ledger_id in ledgers if not await is_adhering(nodes, ledger_id)] == bad
        facts = node.facts()["auditor"]["placement"]
        assert facts["violating"] == len(bad)
        await is_open.abandon()


async def test_copies_are_moved_until_every_ledger_is_well_placed() -> None:
    async with nodes_over(4) as nodes:
        ledgers = [await nodes.written(count, ensemble=3, write=2) for count in (0, 1, 7, 60) * 3]
        await put_racks(nodes, "/a", "/a", "/b", "/c")
        node = await nodes.start("one", MOVING)
        await eventually(lambda: node.placement_check.status.last_ended_ms is not None)
        for ledger_id in ledgers:
            await eventually(partial(is_adhering, nodes, ledger_id))
            assert await nodes.is_whole(ledger_id)
        await eventually(partial(nodes.has_no_marks, node))


async def test_what_cannot_be_better_is_told_and_not_marked() -> None:
    async with nodes_over(3) as nodes:
        ledger_id = await nodes.written(5, ensemble=3, write=2)
        await put_racks(nodes, "/a", "/a", "/b")
        node = await nodes.start("one", MOVING)
        await eventually(lambda: node.placement_check.status.last_ended_ms is not None)
        status = node.placement_check.status
        assert (status.violating, status.marked) == (1, 0)
        assert not await node.marks.read(ledger_id)


async def test_an_auditor_that_takes_over_goes_on_with_the_check_and_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 3,600 s for ten ledgers the first auditor rests after four of them."""
    monkeypatch.setattr(placement_check, "_BATCH", 4)
    looks: list[int] = []
    look = PlacementCheck._judge_ledger

    def seen(check: PlacementCheck, ledger: IndexedLedger) -> tuple[str | None, bool]:
        looks.append(len(looks))
        return look(check, ledger)

    monkeypatch.setattr(PlacementCheck, "_judge_ledger", seen)
    async with nodes_over(3) as nodes:
        ledgers = [await nodes.written(1, ensemble=2, write=2) for _ in range(10)]
        await put_racks(nodes, "/a", "/a", "/b")
        bad = [ledger_id for ledger_id in ledgers if not await is_adhering(nodes, ledger_id)]
        first = await nodes.start("one", CHECKING)

        async def rests() -> bool:
            value = await first.marks.progress("placement")
            return value is not None and decode_progress(value).next_ledger_id == ledgers[4]

        await eventually(rests)
        await settle()
        assert len(looks) == 4
        await first.stop()
        second = await nodes.start("two", CHECKING)
        await eventually(lambda: len(looks) >= 8)
        await settle()
        assert len(looks) == 8
        second.placement_check.run_now()
        await eventually(lambda: second.placement_check.status.last_ended_ms is not None)
        status = second.placement_check.status
        assert (len(looks), status.looked_at, status.violating, sorted(status.named)) == (10, 10, len(bad), bad)
        assert await second.marks.progress("placement") is None


def test_progress_is_read_as_it_was_written() -> None:
    status = PlacementStatus(looked_at=8, violating=3, marked=2, named={7: "in 1 rack (/a) instead of 2"})
    assert decode_progress(encode_progress(Progress(9, status))) == Progress(9, status)


@pytest.mark.parametrize(
    "value",
    [b"?", b"[]", b"{}", b'{"next_ledger_id": -1, "looked_at": 0, "violating": 0, "marked": 0, "named": {}}',
     b'{"next_ledger_id": 1, "looked_at": 0, "violating": 0, "marked": "2", "named": {}}',
     b'{"next_ledger_id": 1, "looked_at": 0, "violating": 0, "marked": 2, "named": {"x": "y"}}'],
)  # fmt: skip
async def test_progress_that_cannot_be_read_begins_the_check_anew(value: bytes) -> None:
    with pytest.raises(ValueError):
        decode_progress(value)
    async with nodes_over(3) as nodes:
        await nodes.written(1)
        await MarkBoard(nodes.cluster.store).set_progress("placement", value)
        node = await nodes.start("one", CHECKING)
        await eventually(lambda: node.placement_check.status.last_ended_ms is not None)
        assert node.placement_check.status.looked_at == 1


async def test_an_operator_asks_and_a_switch_that_is_off_is_respected() -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        await eventually(lambda: node.election.is_elected)
        node.placement_check.run_now()
        await eventually(lambda: node.placement_check.status.last_ended_ms is not None)
        first_ms = node.placement_check.status.last_ended_ms
        await node.marks.set_enabled(False)
        node.placement_check.run_now()
        await eventually(lambda: not node.placement_check._is_asked)
        assert node.placement_check.status.last_ended_ms == first_ms


async def test_a_lost_bookie_is_replaced_from_its_rack() -> None:
    async with nodes_over(6) as nodes:
        await put_racks(nodes, "/a", "/b", "/c", "/a", "/b", "/c")
        ledgers = [await nodes.written(5, ensemble=3, write=3) for _ in range(10)]
        node = await nodes.start("one")
        await nodes.cluster.kill("bookie-0")
        for ledger_id in ledgers:
            await eventually(partial(nodes.is_whole, ledger_id))
            assert await is_adhering(nodes, ledger_id)
        await eventually(partial(nodes.has_no_marks, node))


async def put_groups(nodes: Nodes, *told: tuple[str, str]) -> None:
    """`bookie-0` into the first group and rack, and so on."""
    records = RackRecords(nodes.cluster.store)
    for number, (group, rack) in enumerate(told):
        await records.put(group, f"bookie-{number}", {"rack": rack})
    await eventually(lambda: sum(map(len, nodes.writer.racks.groups.values())) == len(told))


async def has_left(nodes: Nodes, ledger_id: int, bookie: str) -> bool:
    return bookie not in (await nodes.writer.read_metadata(ledger_id)).bookies()


async def test_a_lost_bookie_is_replaced_from_the_groups_of_its_ledger() -> None:
    async with nodes_over(7) as nodes:
        await put_groups(nodes, *[("one", "/a")] * 3, *[("two", "/a")] * 3, ("three", "/a"))
        ledgers = [await nodes.written(5, ensemble=2, write=2, groups=Isolation("one", "three")) for _ in range(10)]
        node = await nodes.start("one")
        for lost, allowed in (("bookie-0", {"bookie-1", "bookie-2"}), ("bookie-1", {"bookie-2", "bookie-6"})):
            await nodes.cluster.kill(lost)
            for ledger_id in ledgers:
                await eventually(partial(has_left, nodes, ledger_id, lost))
                assert (await nodes.writer.read_metadata(ledger_id)).bookies() <= allowed
                assert await nodes.is_whole(ledger_id)
            await eventually(partial(nodes.has_no_marks, node))


async def test_copies_are_not_moved_out_of_the_groups_of_their_ledger() -> None:
    async with nodes_over(4) as nodes:
        await put_groups(nodes, ("one", "/a"), ("one", "/a"), ("two", "/b"), ("two", "/c"))
        kept = await nodes.written(5, ensemble=2, write=2, groups=Isolation("one"))
        node = await nodes.start("one", MOVING)
        await eventually(lambda: node.placement_check.status.last_ended_ms is not None)
        status = node.placement_check.status
        assert (status.violating, status.marked) == (1, 0)
        await node.marks.mark(kept, None, 0)
        await eventually(partial(nodes.has_no_marks, node))
        assert (await nodes.writer.read_metadata(kept)).bookies() == {"bookie-0", "bookie-1"}


IN_REGIONS = replace(CLIENT, regionaware_policy_enabled=True)
DURABLE = replace(IN_REGIONS, regions_to_write="eu;us")


async def test_ledgers_of_one_region_are_told_and_moved_until_they_are_in_both() -> None:
    async with nodes_over(4, IN_REGIONS) as nodes:
        await put_racks(nodes, "/eu/1", "/eu/2")
        ledgers = [await nodes.written(count, ensemble=2, write=2) for count in (0, 1, 7, 60) * 2]
        await put_racks(nodes, "/eu/1", "/eu/2", "/us/1", "/us/2")
        bad = [ledger_id for ledger_id in ledgers if not await is_adhering(nodes, ledger_id)]
        looking = await nodes.start("looking", CHECKING)
        await eventually(lambda: looking.placement_check.status.last_ended_ms is not None)
        status = looking.placement_check.status
        assert (status.violating, status.marked, sorted(status.named)) == (len(bad), 0, bad)
        assert all("in 1 region (eu) instead of 2" in text for text in status.named.values() if "(eu)" in text)
        await looking.stop()
        moving = await nodes.start("moving", MOVING)
        moving.placement_check.run_now()
        for ledger_id in ledgers:
            await eventually(partial(is_adhering, nodes, ledger_id))
            assert await nodes.is_whole(ledger_id)
        await eventually(partial(nodes.has_no_marks, moving))


async def test_a_lost_bookie_is_replaced_from_its_region_and_its_rack_if_that_can_be() -> None:
    async with nodes_over(7, DURABLE) as nodes:
        await put_racks(nodes, "/eu/1", "/us/1", "/eu/1", "/us/1", "/eu/2", "/us/2", "/us/2")
        ledgers = [await nodes.written(5, ensemble=2, write=2) for _ in range(10)]
        node = await nodes.start("one")
        for lost in ("bookie-0", "bookie-2"):
            await nodes.cluster.kill(lost)
            for ledger_id in ledgers:
                await eventually(partial(has_left, nodes, ledger_id, lost))
                assert await is_adhering(nodes, ledger_id)
                assert await nodes.is_whole(ledger_id)
        await eventually(partial(nodes.has_no_marks, node))


async def test_repair_waits_for_a_region_that_durability_asks_for() -> None:
    async with nodes_over(4, DURABLE) as nodes:
        await put_racks(nodes, "/eu/1", "/us/1", "/us/2", "/us/1")
        ledger_id = await nodes.written(5, ensemble=2, write=2)
        node = await nodes.start("one")
        await nodes.cluster.kill("bookie-0")
        await eventually(lambda: [one.outcome.kind for one in node.worker.waiting] == [Hindrance.NO_TARGET])
        await RackRecords(nodes.cluster.store).put("default", "bookie-4", {"rack": "/eu/2"})
        await nodes.cluster.add_bookie("bookie-4")
        await eventually(partial(nodes.is_whole, ledger_id))
        assert "bookie-4" in (await nodes.writer.read_metadata(ledger_id)).bookies()


async def test_repair_goes_to_another_region_where_that_is_not_enforced() -> None:
    async with nodes_over(3, replace(DURABLE, regions_bind_replacements=False)) as nodes:
        await put_racks(nodes, "/eu/1", "/us/1", "/us/2")
        ledger_id = await nodes.written(5, ensemble=2, write=2)
        node = await nodes.start("one", CHECKING)
        await nodes.cluster.kill("bookie-0")
        await eventually(partial(nodes.is_whole, ledger_id))

        def is_told() -> bool:
            node.placement_check.run_now()  # the auditor may not have seen the new record yet
            return list(node.placement_check.status.named) == [ledger_id]

        await eventually(is_told)
        assert "in 1 region (us) instead of 2" in node.placement_check.status.named[ledger_id]


def test_the_policy_is_named_as_apaches_class_is() -> None:
    by_region = {"ensemblePlacementPolicy": POLICY_CLASS, "reppRegionsToWrite": "eu;us"}
    config = load(AutoRecoveryConfig, by_region)
    assert config.knows_regions
    assert config.knows_racks
    assert load(AutoRecoveryConfig, {}).knows_racks
    assert not load(AutoRecoveryConfig, {}).knows_regions
    for wrong, text in (
        ({"ensemblePlacementPolicy": "org.example.Mine"}, "ensemblePlacementPolicy=org.example.Mine is not there"),
        ({"reppRegionsToWrite": "eu;us"}, "reppRegionsToWrite=eu;us needs ensemblePlacementPolicy="),
        ({**by_region, "reppMinimumRegionsForDurability": "3"}, "names 2 regions"),
        ({**by_region, "reppEnableValidation": "false"}, "reppEnableValidation=false is not there"),
        ({**by_region, "reppDisableDurabilityFeatureName": "x"}, "reppDisableDurabilityFeatureName"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(text)):
            load(AutoRecoveryConfig, wrong)
