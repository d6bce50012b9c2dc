"""Regions of bookies: what the settings ask for, and what the client makes of them."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.deciding.quorum import ImpossibleQuorum
from magnetar_core.bookkeeper.client.errors import NotEnoughBookies
from magnetar_core.bookkeeper.client.placing.ensembles import choose_ensemble, choose_replacements
from magnetar_core.bookkeeper.client.placing.regions import (
    DEFAULT_RACK,
    RACKS_MAX,
    RegionRules,
    names_in,
    region_of,
    shares,
)
from magnetar_core.bookkeeper.client.placing.topology import Demand, Location, Topology, region_on
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.bookies.racks import RackRecords
from magnetar_core.bookkeeper.wire.codec_v2 import READ_ENTRY
from magnetar_core.runtime.config import load
from magnetar_core.runtime.types import ConfigurationError
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.waiting import eventually

AWARE = ClientConfig(timeout_s=2.0, speculative_read_timeout_ms=0, regionaware_policy_enabled=True)
DURABLE = replace(AWARE, regions_to_write="eu;us")


def in_racks(*racks: str, rules: RegionRules | None = None) -> Topology:
    """`b0` in the first rack and so on, each on a host of its own."""
    located = {f"b{at}": Location(rack, f"h{at}") for at, rack in enumerate(racks)}
    return Topology(located, regions=rules or RegionRules())


def test_the_region_is_the_first_part_of_the_rack() -> None:
    assert [region_of(rack) for rack in ("/eu/one", "eu/one/", "/eu", DEFAULT_RACK)] == [
        "eu",
        "eu",
        "eu",
        "default-region",
    ]


def test_only_so_many_racks_are_remembered() -> None:
    assert [region_of(f"/eu/{number}") for number in range(RACKS_MAX + 10)] == ["eu"] * (RACKS_MAX + 10)
    assert region_of.cache_info().currsize == RACKS_MAX


def test_copies_are_shared_out_evenly() -> None:
    assert [shares(*one) for one in ((4, 2), (3, 2), (2, 3), (7, 3))] == [[2, 2], [2, 1], [1, 1, 0], [3, 2, 2]]


def test_what_is_demanded_follows_from_the_regions_that_there_are() -> None:
    both = in_racks("/eu/1", "/eu/2", "/us/1", "/us/1")
    everybody = sorted(both.locations)
    assert both.demand(everybody, 2) == Demand(2, 2, 2, 1)
    assert both.demand(everybody, 4) == Demand(3, 4, 2, 2), "two racks in eu, and the one of us"
    assert both.demand(["b0", "b1"], 2) == Demand(2, 2, 1, 2)
    assert replace(both, regions=None).demand(everybody, 4) == Demand(2, 4)
    assert replace(both, regions=RegionRules(3)).demand(everybody, 3) == Demand(2, 3, 3, 1)
    nowhere = in_racks(DEFAULT_RACK, DEFAULT_RACK)
    assert nowhere.demand(["b0", "b1"], 2) == Demand(1, 2, 1, 2)


def test_a_violation_names_the_regions() -> None:
    topology = in_racks("/eu/1", "/eu/2", "/eu/3", "/us/1", "/us/2")
    everybody = sorted(topology.locations)
    (one,) = topology.violations(("b0", "b1"), 2, everybody)
    assert one.text == "b0, b1 are in 1 region (eu) instead of 2"
    (one,) = topology.violations(("b0", "b1", "b2", "b3"), 4, everybody)
    assert one.text == "b0, b1, b2, b3 are unevenly in regions (eu: 3, us: 1; at most 2 in one)"
    assert topology.violations(("b0", "b3", "b1", "b4"), 4, everybody) == []


def test_a_refusal_says_what_is_enforced() -> None:
    topology = in_racks("/eu/1", "/eu/2", "/eu/3", rules=RegionRules(2))
    with pytest.raises(NotEnoughBookies) as raised:
        choose_ensemble(["b0", "b1", "b2"], 3, (), random.Random(1), write_quorum=3, ack_quorum=3, topology=topology)
    assert str(raised.value) == (
        "an ensemble of 3 bookies is asked for in which any 3 copies of an entry span 2 regions "
        "(reppMinimumRegionsForDurability), writable are /eu/1: b0; /eu/2: b1; /eu/3: b2"
    )


def test_what_was_not_durable_before_need_not_be_after_a_replacement() -> None:
    topology = in_racks("/eu/1", "/eu/2", "/eu/3", rules=RegionRules(2))
    found = choose_replacements(
        ["b0", "b1", "b2"], ("b0", "b1"), {1: "b1"}, (), (), random.Random(1),
        write_quorum=2, ack_quorum=2, topology=topology,
    )  # fmt: skip
    assert found == {1: "b2"}


@pytest.mark.parametrize("seed", range(20))
def test_a_replacement_comes_from_the_rack_else_the_region_else_anywhere(seed: int) -> None:
    topology = in_racks("/us/1", "/eu/1", "/eu/1", "/eu/2", "/asia/1", "/us/2")
    names = sorted(topology.locations)

    def successor(away: Sequence[str]) -> str:
        found = choose_replacements(
            names, ("b0", "b1"), {1: "b1"}, away, (), random.Random(seed), write_quorum=2, topology=topology
        )
        return found[1]

    assert successor(()) == "b2"
    assert successor(("b2",)) == "b3"
    assert successor(("b2", "b3")) == "b4", "us has a copy already"
    assert successor(("b2", "b3", "b4")) == "b5"


def test_the_settings_have_apaches_names_and_are_checked() -> None:
    config = load(
        ClientConfig,
        {
            "bookkeeperClientRegionawarePolicyEnabled": "true",
            "reppRegionsToWrite": "eu;us;asia",
            "reppMinimumRegionsForDurability": "3",
            "reppEnableDurabilityEnforcementInReplace": "false",
        },
    )
    assert config.region_rules == RegionRules(3, binds_replacements=False)
    assert names_in(config.regions_to_write) == ("eu", "us", "asia")
    assert AWARE.region_rules == RegionRules(0), "without regions to write nothing is enforced"
    assert ClientConfig().region_rules is None
    for wrong, text in (
        ({"reppRegionsToWrite": "eu;us"}, "needs bookkeeperClientRegionawarePolicyEnabled=true"),
        ({"bookkeeperClientRegionawarePolicyEnabled": "true", "reppRegionsToWrite": "eu"}, "names 1 region, and"),
        ({"reppEnableValidation": "false"}, "reppEnableValidation=false"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            load(ClientConfig, wrong)


def test_the_region_of_a_host_is_that_of_its_bookies() -> None:
    located = {"a": Location("/eu/1", "x"), "b": Location("/us/1", "y"), "c": Location("/eu/1", "y")}
    assert region_on("X", located) == "eu"
    assert region_on("y", located) is None
    assert region_on("z", located) is None
    assert region_on("x", {"a": Location(DEFAULT_RACK, "x")}) is None


async def opened(cluster: FakeCluster, config: ClientConfig, *racks: str) -> BookKeeper:
    client = await cluster.client(config)
    records = RackRecords(cluster.store)
    for number, rack in enumerate(racks):
        await records.put("default", f"bookie-{number}", {"rack": rack})
    await eventually(lambda: len(client.racks.racks) == len(racks))
    return client


def has_left(handle: LedgerWriteHandle, bookie: str) -> bool:
    return bookie not in handle.metadata.last_segment.ensemble


async def test_new_ledgers_are_in_both_regions_and_a_change_stays_in_its_region() -> None:
    async with fake_cluster(6) as cluster:
        client = await opened(cluster, AWARE, "/eu/1", "/eu/1", "/eu/2", "/us/1", "/us/1", "/us/2")
        topology = client.topology()
        for _ in range(10):
            handle = await client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=2)
            ensemble = handle.metadata.last_segment.ensemble
            assert len(topology.racks(ensemble)) == 4, "both racks of both regions"
            await handle.close()
        handle = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1)
        lost = handle.metadata.last_segment.ensemble[0]
        await cluster.kill(lost)
        await handle.add(b"entry 0")
        await eventually(partial(has_left, handle, lost))
        assert topology.of(handle.metadata.last_segment.ensemble[0]).region == topology.of(lost).region
        await handle.close()


async def test_without_enough_regions_a_ledger_is_refused_where_durability_is_asked_for() -> None:
    async with fake_cluster(3) as cluster:
        client = await opened(cluster, DURABLE, "/eu/1", "/eu/2", "/eu/3")
        with pytest.raises(NotEnoughBookies, match="span 2 regions"):
            await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
        with pytest.raises(
            ImpossibleQuorum, match="needs an ack quorum of 3 at least with a write quorum of 3, it is 2"
        ):
            await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        spread = await opened(cluster, AWARE, "/eu/1", "/eu/2", "/eu/3")
        await (await spread.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)).close()


async def test_a_writer_goes_on_without_a_successor_rather_than_in_one_region() -> None:
    async with fake_cluster(5) as cluster:
        client = await opened(cluster, DURABLE, "/eu/1", "/us/1", "/us/2", "/us/3", "/us/4")
        handle = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await handle.add(b"entry 0")
        await cluster.kill("bookie-0")
        adding = asyncio.ensure_future(handle.add(b"entry 1"))
        await eventually(lambda: list(handle._writer.left_out.values()) == ["bookie-0"])
        assert not adding.done()
        await cluster.revive("bookie-0")
        await adding
        assert {client.topology().of(one).region for one in handle.metadata.last_segment.ensemble} == {"eu", "us"}
        await handle.close()


@pytest.mark.parametrize("local", ["eu", "us"])
async def test_reads_go_to_the_clients_own_region_first(local: str) -> None:
    async with fake_cluster(2) as cluster:
        client = await opened(cluster, replace(AWARE, batch_read_enabled=False), "/eu/1", "/us/1")
        handle = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        for number in range(6):
            await handle.add(b"entry %d" % number)
        await handle.close()
        here = replace(client.topology(), local_region=local)
        client._open_pool().topology = lambda: here
        reading = await client.open_ledger(handle.ledger_id, recovery=False)
        await reading.read(0, 5)
        asked = {name: sum(one[0] == READ_ENTRY for one in bookie.requests) for name, bookie in cluster.bookies.items()}
        near, far = ("bookie-0", "bookie-1") if local == "eu" else ("bookie-1", "bookie-0")
        assert (asked[near], asked[far]) == (6, 0)
