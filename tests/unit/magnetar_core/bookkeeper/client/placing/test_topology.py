"""Where bookies stand, what an ensemble should have, and what the client makes of the register and of `/bookies`."""

import random
from functools import partial

import pytest

from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import NotEnoughBookies
from magnetar_core.bookkeeper.client.placing.ensembles import choose_ensemble
from magnetar_core.bookkeeper.client.placing.regions import DEFAULT_RACK
from magnetar_core.bookkeeper.client.placing.topology import Deficit, Demand, Location, Topology, host_of, windows
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.bookies.racks import RackRecords
from magnetar_core.runtime.config import load
from tests.support.fake_bookies import fake_cluster
from tests.support.waiting import eventually


def test_windows_are_the_write_sets() -> None:
    assert windows(3, 2) == [(0, 1), (1, 2), (2, 0)]
    assert windows(3, 3) == [(0, 1, 2)]
    assert windows(1, 1) == [(0,)]


def test_an_id_tells_the_host_where_nothing_else_does() -> None:
    assert host_of("Node-1:3181") == "node-1"
    assert host_of("node-d") == "node-d"
    assert Topology().of("10.0.0.1:3181") == Location(DEFAULT_RACK, "10.0.0.1")


def test_on_one_host_nothing_is_demanded_and_nothing_is_a_violation() -> None:
    bookies = [f"127.0.0.1:{port}" for port in range(3181, 3186)]
    topology = Topology()
    assert topology.demand(bookies, 2) == Demand(1, 1)
    assert topology.violations(bookies[:3], 2, bookies) == []
    named = Topology({one: Location("/only", "127.0.0.1") for one in bookies})
    assert named.violations(bookies[:3], 2, bookies) == []


def test_a_violation_says_what_is_lacking() -> None:
    topology = Topology(
        {"a": Location("/one", "x"), "b": Location("/one", "x"), "c": Location("/two", "y"), "d": Location("/two", "z")}
    )
    first, *others = topology.violations(("a", "b", "c"), 2, "abcd")
    assert not others
    assert first.text == "a, b are in 1 rack (/one) instead of 2 and on 1 host (x) instead of 2"
    assert topology.deficit(("a", "b", "c"), 2, "abcd") == Deficit(racks=1, hosts=1)
    enforced = Topology({"a": Location("/one", "x"), "b": Location(DEFAULT_RACK, "y")}, is_enforced=True)
    assert enforced.violations(("a", "b"), 2, "ab")[0].text == (
        "a, b are partly in /default-rack, which does not count as a rack"
    )
    assert enforced.deficit(("a", "b"), 2, "ab") == Deficit(racks=1)
    unaware = Topology(topology.locations, is_aware=False)
    assert unaware.violations(("a", "b", "c"), 2, "abcd") == []


def test_enforcement_refuses_with_the_racks_that_there_are() -> None:
    topology = Topology(
        {"a": Location("/one", "x"), "b": Location("/one", "y"), "c": Location(DEFAULT_RACK, "z")}, is_enforced=True
    )
    with pytest.raises(NotEnoughBookies) as raised:
        choose_ensemble("abc", 2, (), random.Random(1), topology=topology)
    assert str(raised.value) == (
        "an ensemble of 2 bookies is asked for whose write quorums of 2 each span 2 racks (enforced; /default-rack "
        "does not count), writable are /default-rack: c; /one: a, b"
    )


async def test_new_ledgers_and_changes_follow_the_racks_that_an_operator_sets() -> None:
    config = ClientConfig(timeout_s=2.0, speculative_read_timeout_ms=0)
    async with fake_cluster(4) as cluster:
        client = await cluster.client(config)
        records = RackRecords(cluster.store)
        for number in range(4):
            await records.put("default", f"bookie-{number}", {"rack": f"/r{number % 2}", "hostname": None})
        await eventually(lambda: len(client.racks.racks) == 4)
        topology = client.topology()
        assert topology.of("bookie-2").rack == "/r0"
        assert client.topology() is topology
        for _ in range(10):
            handle = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1)
            first, second = handle.metadata.last_segment.ensemble
            assert topology.of(first).rack != topology.of(second).rack
            await handle.close()
        handle = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1)
        lost, kept = handle.metadata.last_segment.ensemble
        await cluster.kill(lost)
        await handle.add(b"entry 0")
        await eventually(partial(_has_left, handle, lost))
        successor = next(one for one in handle.metadata.last_segment.ensemble if one != kept)
        assert topology.of(successor).rack == topology.of(lost).rack
        await handle.close()


def _has_left(handle: LedgerWriteHandle, bookie: str) -> bool:
    return bookie not in handle.metadata.last_segment.ensemble


async def test_the_host_is_that_of_the_registration() -> None:
    async with fake_cluster(3) as cluster:
        client = await cluster.client()
        assert dict(client.bookies.hosts) == {f"bookie-{number}": "127.0.0.1" for number in range(3)}
        assert client.topology().violations(("bookie-0", "bookie-1"), 2, client.bookies.available) == []


async def test_without_the_policy_racks_do_not_count() -> None:
    async with fake_cluster(2) as cluster:
        await RackRecords(cluster.store).put("default", "bookie-0", {"rack": "/r0"})
        client = await cluster.client(ClientConfig(rackaware_policy_enabled=False))
        assert not client.topology().is_aware


def test_the_settings_have_pulsars_names() -> None:
    config = load(
        ClientConfig,
        {
            "bookkeeperClientRackawarePolicyEnabled": "true",
            "bookkeeperClientMinNumRacksPerWriteQuorum": "3",
            "bookkeeperClientEnforceMinNumRacksPerWriteQuorum": "true",
        },
    )
    assert (config.rackaware_policy_enabled, config.racks_min, config.racks_enforced) == (True, 3, True)
    assert (ClientConfig().rackaware_policy_enabled, ClientConfig().racks_min, ClientConfig().racks_enforced) == (
        True,
        2,
        False,
    )


def test_two_bookies_of_a_service_on_each_of_two_hosts_never_hold_both_copies_on_one() -> None:
    """Ids as a service gives them: host and port, or one id counted up; the host is that of the registration."""
    by_port = [f"{host}:{port}" for host in ("10.0.0.1", "10.0.0.2") for port in (3181, 3182)]
    counted = {"a": "m1", "a-1": "m1", "b": "m2", "b-1": "m2"}
    by_id = Topology({bookie: Location(DEFAULT_RACK, host) for bookie, host in counted.items()})
    for topology, bookies in ((Topology(), by_port), (by_id, list(counted))):
        for seed in range(50):
            chosen = choose_ensemble(bookies, 2, (), random.Random(seed), write_quorum=2, topology=topology)
            assert len(topology.hosts(chosen)) == 2
