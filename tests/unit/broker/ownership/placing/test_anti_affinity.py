"""Namespaces of an anti-affinity group: on which brokers they are, and where the load manager may move them."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.names import Bundles
from broker.ownership.ownership import BundleOwnership
from broker.ownership.placing.anti_affinity import (
    ANTI_AFFINITY_GROUP,
    LOCAL_POLICIES,
    Spread,
    domains_path,
    may_move,
    parse_domain,
    parse_group,
    spread_of,
)
from broker.ownership.placing.group_records import _READS_MAX, MEMBERS_MAX, VALID_S, GroupRecords
from broker.ownership.placing.isolation import isolation_path
from broker.ownership.placing.preference import preference
from broker.ownership.probing import Sign
from broker.ownership.rules import BrokerAddress
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import Node
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName
from tests.support.manual_clock import ManualClock

WHOLE = "0x00000000_0xffffffff"
DOMAINS = {"a": "one", "b": "one", "c": "two", "d": "two"}


def names(count: int) -> list[str]:
    return [f"t/n{number:02}" for number in range(count)]


def apaches_choice(candidates: Collection[str], counts: Mapping[str, int], domains: Mapping[str, str]) -> set[str]:
    """The definition, as Apache's brokers strike out one candidate after the other."""
    left = set(candidates)
    if domains:
        total: Counter[str] = Counter()
        for broker in candidates:
            total[domains.get(broker, "default")] += counts.get(broker, 0)
        least = min(total.values())
        left = {broker for broker in left if total[domains.get(broker, "default")] == least}
    least = min(counts.get(broker, 0) for broker in left)
    return {broker for broker in left if counts.get(broker, 0) == least}


@given(st.data())
def test_the_first_broker_is_one_that_apaches_brokers_would_leave(data: st.DataObject) -> None:
    every = ["a", "b", "c", "d", "e"]
    candidates = data.draw(st.sets(st.sampled_from(every), min_size=1))
    domains = data.draw(st.dictionaries(st.sampled_from(every), st.sampled_from(("one", "two", "three"))))
    owners = data.draw(st.dictionaries(st.sampled_from(names(6)), st.sets(st.sampled_from(every))))
    owners.setdefault("t/n03", set())
    spread = spread_of("t/n03", owners, domains)
    counts = Counter(broker for brokers in owners.values() for broker in brokers)
    usage = data.draw(st.dictionaries(st.sampled_from(every), st.floats(0, 1)))
    order = preference(f"t/n03/{WHOLE}", candidates, {}, usage, (), spread)
    assert sorted(order) == sorted(candidates)
    assert order[0] in apaches_choice(candidates, counts, domains)


@pytest.mark.parametrize("domains", [{}, DOMAINS, {"a": "one"}])
def test_one_after_the_other_they_are_spread_over_domains_and_brokers(domains: dict[str, str]) -> None:
    owners: dict[str, set[str]] = {name: set() for name in names(9)}
    for number, name in enumerate(owners, 1):
        owners[name].add(preference(f"{name}/{WHOLE}", "abcd", {}, None, (), spread_of(name, owners, domains))[0])
        on = Counter(broker for brokers in owners.values() for broker in brokers)
        inside = Counter({domains.get(broker, "none"): 0 for broker in "abcd"})
        for broker, count in on.items():
            inside[domains.get(broker, "none")] += count
        if domains:
            assert max(inside.values()) - min(inside.values()) <= 1, number
        for domain in inside:
            counts = [on[broker] for broker in "abcd" if domains.get(broker, "none") == domain]
            assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("domains", [{}, DOMAINS])
def test_at_the_same_moment_they_are_on_as_many_domains_and_brokers_as_there_are(domains: dict[str, str]) -> None:
    owners: dict[str, set[str]] = {name: set() for name in names(4)}
    firsts = [
        preference(f"{name}/{WHOLE}", "abcd", {}, None, (), spread_of(name, owners, domains))[0] for name in owners
    ]
    assert sorted(firsts) == list("abcd")
    if domains:
        assert len({domains[broker] for broker in firsts[:2]}) == 2


def test_the_bundles_of_one_namespace_even_out_as_well() -> None:
    bundles = [f"t/n00/{text}" for text in Bundles.equal(16).ranges]

    def firsts(owners: Mapping[str, Collection[str]]) -> Counter[str]:
        spread = spread_of("t/n00", owners, {})
        return Counter(preference(bundle, "ab", {}, None, bundles, spread)[0] for bundle in bundles)

    assert firsts({"t/n00": ()}) == {"a": 8, "b": 8}
    assert firsts({"t/n00": (), "t/n01": {"a", "b"}}) == {"a": 8, "b": 8}
    assert firsts({"t/n00": (), "t/n01": {"b"}}) == {"a": 15, "b": 1}, "as with Apache's: b serves one namespace more"


def test_a_bundle_moves_only_where_it_is_as_well_off() -> None:
    def moves(owners: dict[str, set[str]], domains: dict[str, str], destination: str, *, is_last: bool = True) -> bool:
        return may_move(spread_of("t/n00", owners, domains), "a", destination, "abcd", is_last=is_last)

    assert moves({"t/n00": {"a"}, "t/n01": {"b"}}, {}, "c")
    assert not moves({"t/n00": {"a"}, "t/n01": {"b"}}, {}, "b")
    assert moves({"t/n00": {"a"}, "t/n01": {"a"}}, {}, "b")
    assert moves({"t/n00": {"a"}, "t/n01": {"a"}, "t/n02": {"b"}}, {}, "b"), "neither better nor worse"
    assert not moves({"t/n00": {"a"}, "t/n01": {"c"}}, DOMAINS, "d")
    assert moves({"t/n00": {"a"}, "t/n01": {"c"}}, DOMAINS, "b")
    assert moves({"t/n00": {"a"}, "t/n01": {"b"}}, DOMAINS, "c")
    assert not moves({"t/n00": {"a"}, "t/n01": {"b"}}, {}, "b", is_last=False), "the rest of it does not help n01"
    assert moves({"t/n00": {"a", "b"}, "t/n01": {"b"}}, {}, "b", is_last=False), "they are together anyway"
    assert moves({"t/n00": {"a"}, "t/n01": {"a"}}, DOMAINS, "b", is_last=False)
    assert not moves({"t/n00": {"a"}, "t/n01": {"d"}, "t/n02": {"c"}}, DOMAINS, "d")


def test_what_nobody_serves_is_counted_for_the_turns() -> None:
    owners = {"t/n00": {"a"}, "t/n01": set(), "t/n02": set(), "t/n03": {"b"}}
    assert [spread_of(name, owners, {}).turn for name in ("t/n01", "t/n02")] == [0, 1]
    assert spread_of("t/n03", owners, {}).turn == 2


def test_brokers_of_different_domains_follow_each_other() -> None:
    assert Spread("t/n", domains=DOMAINS).in_turns("abcde") == ["e", "a", "c", "b", "d"]
    assert Spread("t/n").in_turns("cab") == ["a", "b", "c"]


def test_records_are_read_as_apache_writes_them() -> None:
    assert parse_group(b'{"bundles":{"boundaries":[]},"namespaceAntiAffinityGroup":"Group-1"}', "/p") == "group-1"
    for value in (b"", b"{}", b'{"namespaceAntiAffinityGroup":" "}', b'{"namespaceAntiAffinityGroup":null}'):
        assert parse_group(value, "/p") is None
    assert parse_domain(b'{"brokers":["a:1","b:1"]}', "/p") == ("a:1", "b:1")
    assert parse_domain(b"{}", "/p") == ()
    for value in (b"damaged", b"[]", b'{"namespaceAntiAffinityGroup":7}'):
        with pytest.raises(Corruption, match="/p"):
            parse_group(value, "/p")
    with pytest.raises(Corruption, match="/p"):
        parse_domain(b'{"brokers":7}', "/p")


# -------------------------------------------------------------------------------- records


async def put_group(store: MemoryStore, namespace: str, group: str | None) -> None:
    record = {} if group is None else {ANTI_AFFINITY_GROUP: group}
    await store.put(f"{LOCAL_POLICIES}/{namespace}", json.dumps(record).encode())


async def test_the_members_of_a_group_are_found_and_a_damaged_record_is_none() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    records = GroupRecords(store, clock, "lab", knows_domains=lambda: True)
    await put_group(store, "t/n00", "g")
    await put_group(store, "u/n01", "G")
    await put_group(store, "t/n02", "h")
    await store.put(f"{LOCAL_POLICIES}/t/n03", b"damaged")
    assert await records.members("t/n00") == ["t/n00", "u/n01"]
    assert await records.members("t/n03") == await records.members("t/nothing") == []
    await put_group(store, "t/n04", "g")
    assert await records.members("t/n04") == ["t/n00", "t/n04", "u/n01"], "who is new is known at once"
    await put_group(store, "t/n00", None)
    assert await records.members("t/n00") == []
    assert await records.members("u/n01") == ["t/n00", "t/n04", "u/n01"]
    clock.advance(VALID_S)
    assert await records.members("u/n01") == ["t/n04", "u/n01"]
    await records.stop()


async def test_of_a_group_only_so_many_namespaces_count(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(LoopClock())
    records = GroupRecords(store, LoopClock(), "lab", knows_domains=lambda: True)
    many = [f"t/n{number:04}" for number in range(MEMBERS_MAX + 10)]
    for name in many:
        await put_group(store, name, "g")
    assert await records.members(many[0]) == many[:MEMBERS_MAX]
    assert await records.members(many[-1]) == [*many[:MEMBERS_MAX], many[-1]]
    assert f"has {MEMBERS_MAX + 10} namespaces" in caplog.text
    await records.stop()


async def test_only_so_many_records_are_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(LoopClock())
    for number in range(3 * _READS_MAX):
        await put_group(store, f"t/n{number}", "g")
    under_way, most = 0, 0
    get = store.get

    async def slowly(path: str) -> Node | None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return await get(path)

    monkeypatch.setattr(store, "get", slowly)
    records = GroupRecords(store, LoopClock(), "lab", knows_domains=lambda: True)
    assert len(await records.members("t/n0")) == 3 * _READS_MAX
    assert most == _READS_MAX
    await records.stop()


async def test_domains_count_only_where_they_are_switched_on() -> None:
    store = MemoryStore(LoopClock())
    await store.put(f"{domains_path('lab')}/one", b'{"brokers":["a:1","b:1"]}')
    await store.put(f"{domains_path('lab')}/two", b'{"brokers":["c:1"]}')
    await store.put(f"{domains_path('lab')}/three", b"damaged")
    told = {"a:1": "one", "b:1": "one", "c:1": "two"}
    assert await GroupRecords(store, LoopClock(), "lab", knows_domains=lambda: True).domains() == told
    assert await GroupRecords(store, LoopClock(), "lab", knows_domains=lambda: False).domains() == {}
    assert await GroupRecords(store, LoopClock(), "", knows_domains=lambda: True).domains() == {}


# -------------------------------------------------------------------------------- brokers


async def one_bundle(namespace: str) -> Bundles:
    return Bundles.equal(1)


class AllAnswer:
    """As `Prober`: each broker lives."""

    async def sign(self, broker: BrokerAddress) -> Sign:
        return Sign.ANSWERS

    async def is_gone(self, broker: BrokerAddress) -> bool:
        return False

    def forget(self, broker: BrokerAddress) -> None:
        """Nothing is kept."""


class Brokers:
    """Brokers in two failure domains, over sessions of one store."""

    def __init__(self, stack: AsyncExitStack, *, knows_domains: bool) -> None:
        self._stack = stack
        self._knows_domains = knows_domains
        self.root = MemoryStore(LoopClock())
        self.sides: dict[str, BundleOwnership] = {}

    async def start(self, count: int, per_domain: int) -> None:
        domains: dict[str, list[str]] = {}
        for number in range(count):
            made = BundleOwnership(
                self.root.session(), LoopClock(), bundles_of=one_bundle, version="0.1.0", cluster="lab",
                knows_domains=lambda: self._knows_domains, probes=lambda tasks: AllAnswer(),
            )  # fmt: skip
            broker_id = f"127.0.0.{number + 1}:8080"
            await made.start(broker_id, BrokerAddress(f"pulsar://127.0.0.{number + 1}:6650", "", f"http://{broker_id}"))
            self._stack.push_async_callback(made.stop)
            self.sides[broker_id] = made
            domains.setdefault(f"domain-{number // per_domain}", []).append(broker_id)
        for domain, brokers in domains.items():
            await self.root.put(f"{domains_path('lab')}/{domain}", json.dumps({"brokers": brokers}).encode())

    async def take(self, namespace: str) -> str:
        """The broker that has taken the bundle of *namespace*, which all agree on."""
        topic = TopicName.parse(f"persistent://{namespace}/t")
        wanted = set()
        for broker_id, side in self.sides.items():
            better = await side.finder.better_broker(f"{namespace}/{WHOLE}")
            wanted.add(broker_id if better is None else better[0])
        (chosen,) = wanted
        assert (await self.sides[chosen].locate(topic, authoritative=False)).here
        return chosen


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


@pytest.mark.parametrize("knows_domains", [True, False])
async def test_free_bundles_of_a_group_go_to_domains_and_brokers_that_serve_the_fewest(
    stack: AsyncExitStack, knows_domains: bool
) -> None:
    world = Brokers(stack, knows_domains=knows_domains)
    await world.start(4, per_domain=3)
    taken = []
    for name in names(4):
        await put_group(world.root, name, "g")
        taken.append(await world.take(name))
    alone = "127.0.0.4:8080"
    if knows_domains:
        assert taken.count(alone) == 2
        assert len(set(taken)) == 3, "those of the other domain are on different brokers"
    else:
        assert len(set(taken)) == 4


async def test_a_group_is_kept_within_the_brokers_of_its_isolation_policy(stack: AsyncExitStack) -> None:
    world = Brokers(stack, knows_domains=True)
    await world.start(3, per_domain=1)
    failover = {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}}
    policy = {"namespaces": ["t/.*"], "primary": ["127.0.0.[12]"], "secondary": [], "auto_failover_policy": failover}
    await world.root.put(isolation_path("lab"), json.dumps({"p": policy}).encode())
    for name in names(4):
        await put_group(world.root, name, "g")
    assert Counter([await world.take(name) for name in names(4)]) == {"127.0.0.1:8080": 2, "127.0.0.2:8080": 2}


async def test_a_bundle_may_be_moved_to_a_domain_without_its_group_and_to_no_other(stack: AsyncExitStack) -> None:
    world = Brokers(stack, knows_domains=True)
    await world.start(4, per_domain=1)
    for name in names(2):
        await put_group(world.root, name, "g")
    first, second = [await world.take(name) for name in names(2)]
    free = next(one for one in world.sides if one not in (first, second))
    side = world.sides[free]
    assert await side.ranking.may_move(f"t/n00/{WHOLE}", first, free)
    assert not await side.ranking.may_move(f"t/n00/{WHOLE}", first, second)
    assert await side.ranking.may_move(f"t/other/{WHOLE}", first, second), "it is in no group"


async def test_the_owner_of_another_namespace_whose_node_is_damaged_does_not_count(stack: AsyncExitStack) -> None:
    world = Brokers(stack, knows_domains=False)
    await world.start(2, per_domain=1)
    for name in names(3):
        await put_group(world.root, name, "g")
    await world.root.put(f"/namespace/t/n02/{WHOLE}", b"damaged")
    assert len({await world.take(name) for name in names(2)}) == 2
