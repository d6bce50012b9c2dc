"""Groups of bookies that keep namespaces apart: which bookies a ledger may use, and what its record tells of it."""

from collections.abc import Collection
from functools import partial

import pytest

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import NotEnoughBookies
from magnetar_core.bookkeeper.client.placing.isolation import POLICY_KEY, Isolation, isolation_in, usable
from magnetar_core.bookkeeper.metadata.bookies.racks import RackRecords
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.waiting import eventually

GROUPS = {"one": {"a", "b"}, "two": {"c", "d"}, "both": {"b", "c"}}
ALL = frozenset("abcdef")

# What a broker of Apache's Pulsar 4.0.8 wrote into the records of ledgers.
RECORDED = {
    Isolation("g1", "g2"): b'{\n  "policyClass" : "org.apache.pulsar.bookie.rackawareness.'
    b'IsolatedBookieEnsemblePlacementPolicy",\n  "properties" : {\n    "isolationBookieGroups" : "g1",\n    '
    b'"secondaryIsolationBookieGroups" : "g2"\n  }\n}',
    Isolation("g2"): b'{\n  "policyClass" : "org.apache.pulsar.bookie.rackawareness.'
    b'IsolatedBookieEnsemblePlacementPolicy",\n  "properties" : {\n    "isolationBookieGroups" : "g2"\n  }\n}',
    Isolation("g1,g2", ""): b'{\n  "policyClass" : "org.apache.pulsar.bookie.rackawareness.'
    b'IsolatedBookieEnsemblePlacementPolicy",\n  "properties" : {\n    "isolationBookieGroups" : "g1,g2",\n    '
    b'"secondaryIsolationBookieGroups" : ""\n  }\n}',
}


@pytest.mark.parametrize(("isolation", "value"), RECORDED.items())
def test_a_record_tells_of_the_groups_as_apaches_do(isolation: Isolation, value: bytes) -> None:
    assert isolation.custom_metadata == ((POLICY_KEY, value),)
    assert isolation_in([("application", b"pulsar"), (POLICY_KEY, value)]) == isolation


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b'{"properties":{}}',
        b'{"policyClass":"x","properties":{"isolationBookieGroups":"a"}}',
        b'{"policyClass":"org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",'
        b'"properties":1}',
    ],
)
def test_what_cannot_be_understood_names_no_groups(value: bytes) -> None:
    assert isolation_in([(POLICY_KEY, value)]) is None
    assert isolation_in([]) is None


@pytest.mark.parametrize(
    ("isolation", "ensemble_size", "expected"),
    [
        (None, 2, "abcdef"),
        (Isolation("*", "*"), 2, "abcdef"),
        (Isolation("one", "two"), 2, "ab"),
        (Isolation("one", "two"), 3, "abcd"),
        (Isolation("one", "two"), 5, "abcdef"),
        (Isolation("one"), 3, "abef"),  # b is in another group as well, and of this one; c and d are of others
        (Isolation("one,both"), 3, "abc"),
        (Isolation("nobody", "one"), 2, "ab"),
        (Isolation("", ""), 2, "ef"),
        (Isolation(), 3, "ef"),
    ],
)
def test_primary_groups_come_first_then_secondary_ones_then_bookies_of_no_group(
    isolation: Isolation | None, ensemble_size: int, expected: str
) -> None:
    assert usable(ALL, GROUPS, isolation, ensemble_size) == frozenset(expected)


def test_only_bookies_that_can_be_taken_count() -> None:
    assert usable(frozenset("bcdef"), GROUPS, Isolation("one", "two"), 2) == frozenset("bcd")
    assert usable(frozenset("bcdef"), GROUPS, Isolation("one", "two"), 2, members="a") == frozenset("b")
    assert usable(ALL, {}, Isolation("one", "two"), 2) == ALL


async def grouped(cluster: FakeCluster, client: BookKeeper, *groups: str) -> None:
    """Put bookie-0, bookie-1, … into *groups*; an empty name: into none."""
    records = RackRecords(cluster.store)
    for number, group in enumerate(groups):
        if group:
            await records.put(group, f"bookie-{number}", {"rack": f"/r{number}"})
    await eventually(lambda: set(client.racks.groups) == {group for group in groups if group})


def named(*numbers: int) -> set[str]:
    return {f"bookie-{number}" for number in numbers}


async def test_a_ledger_is_on_the_bookies_of_its_groups_and_stays_there_when_they_fail() -> None:
    async with fake_cluster(6) as cluster:
        client = await cluster.client(ClientConfig(timeout_s=2.0, speculative_read_timeout_ms=0))
        await grouped(cluster, client, "one", "one", "one", "two", "three", "")
        groups = Isolation("one", "two").custom_metadata
        create = partial(client.create_ledger, write_quorum=2, ack_quorum=1, custom_metadata=groups)
        for _ in range(10):
            handle = await create(ensemble_size=2)
            assert set(handle.metadata.last_segment.ensemble) < named(0, 1, 2)
            await handle.close()
        wide = await create(ensemble_size=4)
        assert set(wide.metadata.last_segment.ensemble) == named(0, 1, 2, 3)
        await wide.close()
        handle = await create(ensemble_size=2)
        for expected in (named(0, 1, 2), named(0, 1, 2, 3)):
            before = set(handle.metadata.last_segment.ensemble)
            await cluster.kill(min(before & named(0, 1, 2)))
            await handle.add(b"entry")
            await eventually(lambda before=before: set(handle.metadata.last_segment.ensemble) != before)  # type: ignore[misc]
            assert set(handle.metadata.last_segment.ensemble) <= expected
        await handle.close()


async def test_a_ledger_is_not_made_on_the_bookies_of_others() -> None:
    async with fake_cluster(3) as cluster:
        client = await cluster.client()
        await grouped(cluster, client, "one", "two", "two")
        with pytest.raises(NotEnoughBookies, match="the ledger may be in the groups one, then none only"):
            await client.create_ledger(
                ensemble_size=2, write_quorum=2, ack_quorum=1, custom_metadata=Isolation("one").custom_metadata
            )


async def test_ledgers_whose_record_names_no_groups_are_on_those_of_the_client() -> None:
    async with fake_cluster(4) as cluster:
        client = await cluster.client(ClientConfig(isolation_groups="two", secondary_isolation_groups="three"))
        await grouped(cluster, client, "one", "two", "three", "one")

        async def ensemble(size: int, *groups: Isolation) -> Collection[str]:
            metadata = tuple(one for group in groups for one in group.custom_metadata)
            handle = await client.create_ledger(
                ensemble_size=size, write_quorum=size, ack_quorum=1, custom_metadata=metadata
            )
            await handle.close()
            return set(handle.metadata.last_segment.ensemble)

        assert await ensemble(1) == named(1)
        assert await ensemble(2) == named(1, 2)
        assert await ensemble(2, Isolation("one")) == named(0, 3)


async def test_lost_copies_are_given_back_within_the_groups_of_the_ledger() -> None:
    async with fake_cluster(6) as cluster:
        client = await cluster.client()
        await grouped(cluster, client, "one", "one", "one", "two", "two", "two")
        groups = Isolation("two").custom_metadata
        for _ in range(10):
            found = client.choose_replacements(
                ("bookie-3", "bookie-4"), {0: "bookie-3"}, write_quorum=2, custom_metadata=groups
            )
            assert found == {0: "bookie-5"}
        assert client.choose_replacements(
            ("bookie-3", "bookie-4"), {0: "bookie-3"}, ("bookie-5",), custom_metadata=groups
        ) == {}  # fmt: skip
