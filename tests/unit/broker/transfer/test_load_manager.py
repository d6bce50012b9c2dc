"""The load manager: reports in the metadata store, moves and splits by the leader; brokers with their HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pulsar
import pytest

from broker.names import Bundles
from broker.ownership.load.averages import BROKER_AVERAGES, BUNDLE_DATA, BundleAverages
from broker.ownership.load.balancing import Move
from broker.ownership.load.report import BrokerLoad, BundleLoad
from broker.ownership.membership import BROKERS
from broker.ownership.placing.anti_affinity import ANTI_AFFINITY_GROUP, LOCAL_POLICIES
from broker.ownership.rules import BrokerAddress
from broker.settings.config import change_in_use
from broker.settings.groups.load import ONE_BUNDLE
from broker.transfer.load_manager import LoadManager
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.process.usage import cpu_seconds
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.test_official_client import QUIET, TIMEOUT_MS

NS = "public/default"
TOPIC = TopicName.parse(f"persistent://{NS}/t")
BUNDLE = Bundles.equal(16).bundle_of(TOPIC)


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def report(world: AdminWorld, side: Side) -> dict[str, Any]:
    node = await world.store.get(f"{BROKERS}/{side.id}")
    assert node is not None
    found: dict[str, Any] = json.loads(node.value)
    return found


async def tell(side: Side, cpu: float, **bundles: BundleLoad) -> None:
    """What *side* says of itself, instead of what it measures."""
    load = BrokerLoad(cpu=cpu, bundles={f"{NS}/{name}": one for name, one in bundles.items()}, at_ms=1)
    await side.ownership.members.report_load(side.load.encoded(load))


def leader(*sides: Side) -> Side:
    (found,) = [side for side in sides if side.ownership.members.is_leader]
    return found


BUSY = BundleLoad(bytes_in=300.0, messages_in=3.0, topics=2)
REST = BundleLoad(bytes_in=700.0, messages_in=7.0, topics=2)
OTHER = "0x00000000_0x10000000"
assert f"{NS}/{OTHER}" != BUNDLE


async def test_a_broker_tells_its_load_with_the_bundles_that_it_has(world: AdminWorld) -> None:
    a = await world.side(report_interval_min_ms=100)
    await eventually(lambda: _has(world, a, "numBundles", 0))
    client = pulsar.Client(a.url, logger=QUIET)
    await world.run(client.create_producer, TOPIC.full)
    await eventually(lambda: _has(world, a, "bundles", [BUNDLE]))
    await eventually(lambda: _has(world, a, "numProducers", 1))
    told = await report(world, a)
    assert told["lastStats"][BUNDLE]["topics"] == 1
    assert 0 < told["memory"]["usage"] < told["memory"]["limit"]
    assert told["nonPersistentTopicsEnabled"] is True
    shown = (await world.call(a, "GET", "/admin/v2/broker-stats/load-report")).json
    assert shown["bundles"] == [BUNDLE]
    assert list(shown) == list(told)
    await world.run(client.close)


async def _has(world: AdminWorld, side: Side, name: str, value: object) -> bool:
    return (await report(world, side)).get(name) == value


async def test_a_load_that_does_not_change_is_told_once(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    used_s = cpu_seconds()
    monkeypatch.setattr("broker.transfer.load_manager.cpu_seconds", lambda: used_s)  # of a busy core: above the memory
    a = await world.side(load_balancer=False)
    monkeypatch.setattr("broker.transfer.load_manager.resident_bytes", lambda: 1000)
    assert await a.load.report_if_due()
    assert not await a.load.report_if_due()
    monkeypatch.setattr("broker.transfer.load_manager.resident_bytes", lambda: a.load._memory_limit)
    assert await a.load.report_if_due()


async def test_a_new_bundle_goes_to_the_least_loaded_broker(world: AdminWorld) -> None:
    a, b = await world.side(load_balancer=False), await world.side(load_balancer=False)
    await tell(a, 0.9)
    await tell(b, 0.1)
    for number in range(20):
        topic = TopicName.parse(f"persistent://{NS}/t{number}")
        assert (await b.ownership.locate(topic, authoritative=False)).here
    assert a.ownership.owned_bundles == []


async def test_the_leader_moves_a_bundle_from_the_most_to_the_least_loaded_broker(world: AdminWorld) -> None:
    a, b = (
        await world.side(load_balancer=False, shedding_strategy=ONE_BUNDLE),
        await world.side(load_balancer=False, shedding_strategy=ONE_BUNDLE),
    )
    client = pulsar.Client(a.url, logger=QUIET)
    assert (await a.ownership.locate(TOPIC, authoritative=True)).here
    producer = await world.run(client.create_producer, TOPIC.full)
    consumer = await world.run(client.subscribe, TOPIC.full, "s")
    text = BUNDLE.rpartition("/")[2]
    await tell(a, 0.9, **{text: BUSY, OTHER: REST})
    await tell(b, 0.1)
    head = leader(a, b)
    await head.load.balance()
    assert a.ownership.owned_bundles == [BUNDLE], "one round is not enough"
    await head.load.balance()
    assert (a.ownership.owned_bundles, b.ownership.owned_bundles) == ([], [BUNDLE])
    assert (head.load.moves, head.load.splits) == (1, 0)
    await world.run(producer.send, b"after the move")
    assert (await world.run(consumer.receive, TIMEOUT_MS)).data() == b"after the move"
    await head.load.balance()
    assert b.ownership.owned_bundles == [BUNDLE], "nothing moves before both have told their load"
    await world.run(client.close)


async def put_into_group(world: AdminWorld, namespace: str) -> None:
    path = f"{LOCAL_POLICIES}/{namespace}"
    node = await world.store.get(path)
    record = {} if node is None else json.loads(node.value)
    await world.store.put(path, json.dumps({**record, ANTI_AFFINITY_GROUP: "g"}).encode())


async def test_no_bundle_moves_to_where_its_anti_affinity_group_is_less_apart(world: AdminWorld) -> None:
    a, b = (
        await world.side(load_balancer=False, shedding_strategy=ONE_BUNDLE),
        await world.side(load_balancer=False, shedding_strategy=ONE_BUNDLE),
    )
    answer = await world.call(a, "PUT", "/admin/v2/namespaces/public/other", {"bundles": {"numBundles": 1}})
    assert answer.status == 204
    for namespace in (NS, "public/other"):
        await put_into_group(world, namespace)
    assert (await a.ownership.locate(TOPIC, authoritative=True)).here
    assert await a.ownership.keeper.acquire(f"{NS}/{OTHER}")
    other = TopicName.parse("persistent://public/other/t")
    assert (await b.ownership.locate(other, authoritative=True)).here
    await tell(a, 0.9, **{BUNDLE.rpartition("/")[2]: BUSY, OTHER: REST})
    await tell(b, 0.1)
    for _ in range(3):
        await leader(a, b).load.balance()
    assert a.ownership.owned_bundles == sorted([BUNDLE, f"{NS}/{OTHER}"])
    c = await world.side(load_balancer=False, shedding_strategy=ONE_BUNDLE)
    await tell(c, 0.05)
    for _ in range(2):
        await leader(a, b, c).load.balance()
    assert c.ownership.owned_bundles == [BUNDLE], "with nobody of its group there it may move"


async def test_a_bundle_that_may_move_is_found_behind_those_that_may_not(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (
        await world.side(load_balancer=False, shedding_strategy=ONE_BUNDLE),
        await world.side(load_balancer=False, shedding_strategy=ONE_BUNDLE),
    )
    texts = Bundles.equal(16).ranges[:6]
    bundles = dict(zip(texts, [BundleLoad(bytes_in=100.0 + at, topics=2) for at in range(6)], strict=True))
    asked: list[str] = []
    movable: set[str] = set()

    async def may_move(bundle: str, source: str, destination: str) -> bool:
        asked.append(bundle)
        return bundle in movable

    head = leader(a, b)
    monkeypatch.setattr(head.ownership.ranking, "may_move", may_move)
    monkeypatch.setattr("broker.transfer.load_manager.KEPT_MAX", 3)
    moved: list[str] = []

    async def move(move: Move, *_: object) -> bool:
        moved.append(move.bundle)
        return True

    monkeypatch.setattr(head.load, "_move", move)
    await tell(a, 0.9, **bundles)
    await tell(b, 0.1)
    for _ in range(2):
        await head.load.balance()
    assert len(set(asked)) == len(asked) == 3
    assert moved == []
    movable.add(asked[1])
    await head.load.balance()
    assert moved == [asked[1]]


async def test_shedding_and_splitting_can_be_switched_off(world: AdminWorld) -> None:
    a = await world.side(load_balancer=False, shedding=False, auto_split=False)
    b = await world.side(load_balancer=False, shedding=False, auto_split=False)
    assert (await a.ownership.locate(TOPIC, authoritative=True)).here
    await tell(a, 0.9, **{BUNDLE.rpartition("/")[2]: BUSY._replace(topics=5_000), OTHER: REST})
    await tell(b, 0.1)
    for _ in range(3):
        await leader(a, b).load.balance()
    assert a.ownership.owned_bundles == [BUNDLE]
    assert (await world.call(a, "GET", "/admin/v2/broker-stats/load-report")).status == 204


@pytest.mark.parametrize("owner_leads", [True, False])
async def test_a_bundle_above_a_limit_is_split_at_its_owner(world: AdminWorld, owner_leads: bool) -> None:
    a, b = await world.side(load_balancer=False), await world.side(load_balancer=False)
    head = leader(a, b)
    owner = head if owner_leads else next(side for side in (a, b) if side is not head)
    assert (await owner.ownership.locate(TOPIC, authoritative=True)).here
    await tell(owner, 0.1, **{BUNDLE.rpartition("/")[2]: BUSY._replace(topics=1_001)})
    await head.load.balance()
    assert len((await head.broker.bundles_now(NS)).ranges) == 17
    assert owner.ownership.owned_bundles == [], "the parts are given back"
    assert (head.load.moves, head.load.splits) == (0, 1)


async def test_an_owner_that_does_not_answer_stops_nobody(world: AdminWorld) -> None:
    a, b = await world.side(load_balancer=False), await world.side(load_balancer=False)
    head = leader(a, b)
    other = next(side for side in (a, b) if side is not head)
    text = BUNDLE.rpartition("/")[2]
    await tell(other, 0.9, **{text: BUSY._replace(topics=1_001), OTHER: REST})
    await tell(head, 0.1)
    other.ownership.members.address = BrokerAddress("pulsar://127.0.0.1:1", "", "http://127.0.0.1:1")
    await tell(other, 0.9, **{text: BUSY._replace(topics=1_001), OTHER: REST})
    for _ in range(3):
        await head.load.balance()
    assert (head.load.moves, head.load.splits) == (0, 0), "what was not done is not counted"


async def test_what_the_load_manager_sees_and_did_stands_in_the_metrics(world: AdminWorld) -> None:
    side = await world.side()
    await side.load.stop()
    bundle = BundleLoad(bytes_in=100 * 128 * 1024, bytes_out=50 * 128 * 1024)  # 100 and 50 of Apache's Mbit
    side.load.measured = BrokerLoad(cpu=0.25, memory=0.5, bundles={BUNDLE: bundle})
    side.load.splits, side.load.moves, side.load.sources = 3, 5, 2
    found = (await world.call(side, "GET", "/metrics/")).text
    for name, value in (
        ("cpu_usage", "25.0"), ("memory_usage", "50.0"), ("bundles_split_total", "3.0"), ("unload_bundle_total", "5.0"),
        ("unload_broker_total", "2.0"),
    ):  # fmt: skip
        assert f'pulsar_lb_{name}{{cluster="lab"}} {value}' in found
    assert "pulsar_lb_bandwidth" not in found, "the speed of the network is not known"
    change_in_use(side.broker.config, {"nic_gbps": 1.0})
    found = (await world.call(side, "GET", "/metrics/")).text
    assert 'pulsar_lb_bandwidth_in_usage{cluster="lab"} 10.24' in found
    assert 'pulsar_lb_bandwidth_out_usage{cluster="lab"} 5.12' in found
    other = await world.side(load_balancer=False)
    found = (await world.call(other, "GET", "/metrics/")).text
    assert "pulsar_lb_cpu_usage" not in found
    assert "process_cpu_seconds_total" in found


async def test_only_the_leader_works(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds run at every broker, and do nothing but at the leader."""
    done: list[LoadManager] = []

    async def note(self: LoadManager) -> None:
        done.append(self)

    monkeypatch.setattr(LoadManager, "balance", note)
    monkeypatch.setattr("broker.transfer.load_manager.MINUTE_S", 0.02)
    a, b = await world.side(), await world.side()
    await eventually(lambda: len(done) > 3)
    assert set(done) == {leader(a, b).load}


async def test_the_next_leader_begins_with_the_averages_of_the_former_one(world: AdminWorld) -> None:
    a, b = await world.side(load_balancer=False), await world.side(load_balancer=False)
    head = leader(a, b)
    other = next(side for side in (a, b) if side is not head)
    text = BUNDLE.rpartition("/")[2]
    await tell(head, 0.1, **{text: BUSY})
    for _ in range(3):
        await head.load.sample()
    await head.load.write_averages()
    path = f"{BUNDLE_DATA}/{BUNDLE}"
    assert (await stored(world, path))["longTermData"]["numSamples"] == 3
    assert (await stored(world, f"{BROKER_AVERAGES}/{head.id}"))["longTermMsgThroughputIn"] == BUSY.bytes_in
    assert (await stored(world, f"{BROKER_AVERAGES}/{other.id}"))["longTermMsgThroughputIn"] == 0
    await other.load.sample()
    await other.load.write_averages()
    assert (await stored(world, path))["longTermData"]["numSamples"] == 4
    await world.store.put(f"{BROKER_AVERAGES}/gone:8080", b"{}")
    await tell(head, 0.1)
    await other.load.sample()
    await other.load.write_averages()
    assert await world.store.get(path) is None, "no broker tells of it"
    assert await world.store.children(BROKER_AVERAGES) == sorted([a.id, b.id])


async def stored(world: AdminWorld, path: str) -> dict[str, Any]:
    node = await world.store.get(path)
    assert node is not None
    found: dict[str, Any] = json.loads(node.value)
    return found


async def test_averages_are_written_at_their_interval_and_by_the_leader(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.transfer.load_manager.MINUTE_S", 0.02)
    done: list[tuple[str, LoadManager]] = []

    async def sample(self: LoadManager) -> None:
        done.append(("sample", self))

    async def write(self: LoadManager) -> None:
        done.append(("write", self))

    monkeypatch.setattr(LoadManager, "sample", sample)
    monkeypatch.setattr(LoadManager, "write_averages", write)
    a, b = await world.side(averages_interval_minutes=5), await world.side(averages_interval_minutes=5)
    await eventually(lambda: [what for what, _ in done].count("write") > 2)
    assert {by for _, by in done} == {leader(a, b).load}
    kinds = [what for what, _ in done]
    assert kinds[:2] == ["sample", "write"]
    gaps = [len(gap) for gap in "".join("w" if kind == "write" else "s" for kind in kinds).split("w")]
    assert min(gaps[1:-1]) >= 2, "samples between two writes"


async def test_processor_use_is_that_of_the_last_interval(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    a = await world.side(load_balancer=False, usage_interval_minutes=2)
    now_s, used_s = a.broker.clock.monotonic(), 0.0
    monkeypatch.setattr("broker.transfer.load_manager.cpu_seconds", lambda: used_s)
    monkeypatch.setattr(a.load, "_counted", (now_s, 0.0))
    monkeypatch.setattr(a.load, "_clock", StillClock(lambda: now_s))

    async def told() -> float:
        await a.load.report_if_due()
        return (await a.load.measure()).cpu

    now_s, used_s = now_s + 2, used_s + 1
    assert await told() == 0.5, "a new broker does not wait for the whole interval"
    now_s, used_s = now_s + 100, used_s + 100
    assert await told() == 0.5
    now_s, used_s = now_s + 20, used_s + 20
    assert await told() == 1.0


class StillClock(LoopClock):
    """Its time is told."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def monotonic(self) -> float:
        return self._now()


async def test_quotas_are_stored_and_given_back(world: AdminWorld) -> None:
    a = await world.side()
    path = f"/admin/v2/resource-quotas/{BUNDLE}"
    for body in ({"memory": "x"}, {"dynamic": 1}, {"other": 1.0}):
        assert (await world.call(a, "POST", path, body)).status == 400
    assert (await world.call(a, "POST", path, {"memory": 5.0})).status == 204
    node = await world.store.get(f"/loadbalance/resource-quota/{BUNDLE}")
    assert node is not None
    assert node.value == (
        b'{"msgRateIn":40.0,"msgRateOut":120.0,"bandwidthIn":100000.0,"bandwidthOut":300000.0,"memory":5.0,'
        b'"dynamic":true}'
    )


async def test_measuring_many_topics_gives_others_their_turn(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.transfer.load_manager._PAUSE_EVERY", 1)
    a = await world.side(load_balancer=False)
    for number in range(3):
        name = TopicName.parse(f"non-persistent://{NS}/t{number}")
        assert (await a.ownership.locate(name, authoritative=True)).here
        await a.broker.opening.open_non_persistent(name)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    load = await a.load.measure()
    counting.cancel()
    assert turns >= 3
    assert load.total.topics == 3


# ------------------------------------------------------------------------------------- Apache's strategies

STRATEGIES = "org.apache.pulsar.broker.loadbalance.impl."


def wide(mbytes: float) -> BundleLoad:
    return BundleLoad(bytes_in=mbytes * 1024 * 1024, messages_in=mbytes * 1000, topics=2)


@pytest.mark.parametrize(
    ("strategy", "rounds"),
    [("ThresholdShedder", 1), ("OverloadShedder", 1), ("UniformLoadShedder", 1), ("AvgShedder", 2)],
)
async def test_a_strategy_that_is_chosen_by_its_class_moves_the_bundle_that_it_would(
    world: AdminWorld, strategy: str, rounds: int
) -> None:
    chosen: dict[str, Any] = {
        "load_balancer": False,
        "shedding_strategy": f"{STRATEGIES}{strategy}",
        "auto_split": False,
        "placement_strategy": f"{STRATEGIES}{'AvgShedder' if strategy == 'AvgShedder' else 'LeastLongTermMessageRate'}",
        "unload_share": 0.6,
    }
    a, b = await world.side(**chosen), await world.side(**chosen)
    assert (await a.ownership.locate(TOPIC, authoritative=True)).here
    text = BUNDLE.rpartition("/")[2]
    # The one with the most traffic leaves, where our own strategy takes what is nearest to half of the difference.
    await tell(a, 0.95, **{text: wide(60), OTHER: wide(59)})
    await tell(b, 0.1)
    head = leader(a, b)
    for number in range(rounds):
        assert head.load.moves == 0, f"after {number} rounds"
        await head.load.balance()
    assert (a.ownership.owned_bundles, b.ownership.owned_bundles) == ([], [BUNDLE])
    moved = head.load.moves
    assert moved >= 1
    await tell(a, 0.1)
    await tell(b, 0.95, **{text: wide(60), OTHER: wide(59)})
    for _ in range(rounds):
        await head.load.balance()
    assert b.ownership.owned_bundles == [BUNDLE], "it stays for the grace period"


async def test_a_round_that_moves_several_bundles_of_a_broker_counts_that_broker_once(world: AdminWorld) -> None:
    chosen: dict[str, Any] = {"load_balancer": False, "auto_split": False, "distribute_evenly": False}
    chosen["shedding_strategy"] = f"{STRATEGIES}OverloadShedder"
    chosen["placement_strategy"] = f"{STRATEGIES}LeastLongTermMessageRate"
    a, b = await world.side(**chosen), await world.side(**chosen)
    texts = Bundles.equal(16).ranges[:3]
    for text in texts:
        assert await a.ownership.keeper.acquire(f"{NS}/{text}")
    # Nothing of what is above the threshold is left with less than two of them.
    await tell(a, 1.0, **{texts[0]: wide(15), texts[1]: wide(14), texts[2]: wide(71)})
    await tell(b, 0.1)
    head = leader(a, b)
    head.load._averages = {
        f"{NS}/{text}": BundleAverages().with_sample(wide(size)) for text, size in zip(texts, (15, 14, 10), strict=True)
    }
    await head.load.balance()
    assert len(b.ownership.owned_bundles) == 2
    assert (head.load.moves, head.load.sources) == (2, 1)


@pytest.mark.parametrize("strategy", [ONE_BUNDLE, f"{STRATEGIES}ThresholdShedder"])
@pytest.mark.parametrize("excluded", [(), ("public/default",)])
async def test_bundles_of_excluded_namespaces_stay(world: AdminWorld, strategy: str, excluded: tuple[str, ...]) -> None:
    chosen: dict[str, Any] = {"load_balancer": False, "auto_split": False, "shedding_strategy": strategy}
    chosen |= {"placement_strategy": f"{STRATEGIES}LeastLongTermMessageRate", "shedding_excluded": excluded}
    a, b = await world.side(**chosen), await world.side(**chosen)
    assert (await a.ownership.locate(TOPIC, authoritative=True)).here
    await tell(a, 0.95, **{BUNDLE.rpartition("/")[2]: wide(60), OTHER: wide(59)})
    await tell(b, 0.1)
    head = leader(a, b)
    for _ in range(3):
        await head.load.balance()
    assert (head.load.moves == 0) == bool(excluded)


async def test_the_strategy_is_changed_while_brokers_run(world: AdminWorld) -> None:
    chosen: dict[str, Any] = {"load_balancer": False, "shedding_strategy": ONE_BUNDLE, "auto_split": False}
    chosen["placement_strategy"] = f"{STRATEGIES}LeastLongTermMessageRate"
    a, b = await world.side(**chosen), await world.side(**chosen)
    assert (await a.ownership.locate(TOPIC, authoritative=True)).here
    head = leader(a, b)
    await tell(a, 0.95, **{BUNDLE.rpartition("/")[2]: wide(60), OTHER: wide(1)})
    await tell(b, 0.1)
    await head.load.balance()
    assert head.load.moves == 0, "our own strategy waits for a second round"
    object.__setattr__(head.load._config, "shedding_strategy", f"{STRATEGIES}OverloadShedder")
    object.__setattr__(head.load._config, "distribute_evenly", False)
    await head.load.balance()
    assert b.ownership.owned_bundles == [BUNDLE]


async def test_a_bundle_stays_where_the_placement_strategy_or_isolation_has_no_other_broker(world: AdminWorld) -> None:
    chosen: dict[str, Any] = {"load_balancer": False, "auto_split": False}
    chosen["shedding_strategy"] = f"{STRATEGIES}ThresholdShedder"
    chosen |= {"placement_strategy": f"{STRATEGIES}LeastLongTermMessageRate", "distribute_evenly": True}
    a, b = await world.side(**chosen), await world.side(**chosen)
    assert (await a.ownership.locate(TOPIC, authoritative=True)).here
    text = BUNDLE.rpartition("/")[2]
    await tell(a, 0.8, **{text: wide(60), OTHER: wide(30)})
    await tell(b, 0.1, x=wide(0.1), y=wide(0.1), z=wide(0.1))
    head = leader(a, b)
    await head.load.balance()
    assert head.load.moves == 0, "b has more bundles of the namespace"
    object.__setattr__(head.load._config, "distribute_evenly", False)
    await head.load.balance()
    assert b.ownership.owned_bundles == [BUNDLE]


async def test_the_speed_of_the_network_is_told_where_it_is_set(world: AdminWorld) -> None:
    a = await world.side(load_balancer=False, nic_gbps=2.0)
    told = a.load.encoded(BrokerLoad(bundles={BUNDLE: BundleLoad(bytes_in=128 * 1_000_000)}))
    assert told["bandwidthIn"] == {"usage": 1_000_000.0, "limit": 2_000_000.0}
    assert told["bandwidthOut"]["limit"] == 2_000_000.0
