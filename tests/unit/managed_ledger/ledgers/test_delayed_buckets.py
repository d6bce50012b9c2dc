"""Ledgers in which Apache's brokers kept the index of delayed messages go with their cursor, and nothing else does."""

from typing import Final

import pytest

from magnetar_core.bookkeeper.client.errors import MetadataUnavailable
from managed_ledger.errors import StorageUnavailable
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST
from tests.support.memory_bookkeeper import StoredLedger
from tests.unit.managed_ledger.test_ledger import NAME, SharedStorage, world

__all__ = ["world"]

TOPIC: Final = "persistent://public/default/t"


def bucket(world: SharedStorage, ledger_id: int, topic: str = TOPIC, component: bytes = b"delayed-index-bucket") -> int:
    """A ledger as `BookkeeperBucketSnapshotStorage` makes it."""
    fields = (
        ("application", b"pulsar"), ("component", component), ("pulsar/delayedIndexBucketKey", b"3_5"),
        ("pulsar/delayedIndexTopic", topic.encode()), ("pulsar/delayedIndexCursor", b"s"),
    )  # fmt: skip
    world.bookkeeper.ledgers[ledger_id] = StoredLedger(ledger_id, fields, closed=True)
    return ledger_id


def named(**ledgers: object) -> dict[str, str]:
    return {f"#pulsar.internal.delayed.bucket_{name}": str(ledger) for name, ledger in ledgers.items()}


async def opened(world: SharedStorage, texts: dict[str, str]) -> ManagedLedger:
    ledger, _ = await world.open()
    await ledger.open_cursor("s", EARLIEST, {"a": "b", **texts})
    return ledger


async def test_buckets_go_with_their_cursor(world: SharedStorage) -> None:
    texts = named(a=bucket(world, 901), b=bucket(world, 902), gone=903, odd="x", minus=-1, none="", vast=2**64)
    ledger = await opened(world, texts)
    await ledger.delete_cursor("s")
    assert {901, 902} <= {*world.bookkeeper.deleted}
    assert await world.store.get(f"/managed-ledgers/{NAME}/s") is None


async def test_buckets_go_with_their_topic(world: SharedStorage) -> None:
    ledger = await opened(world, named(a=bucket(world, 901)))
    await ledger.delete()
    assert 901 in world.bookkeeper.deleted


async def test_buckets_go_with_a_topic_that_is_discarded_unread(world: SharedStorage) -> None:
    ledger = await opened(world, named(a=bucket(world, 901), other=bucket(world, 904, "persistent://a/b/other")))
    await ledger.close()
    await world.factory().discard(NAME)
    assert 901 in world.bookkeeper.deleted
    assert 904 in world.bookkeeper.ledgers


async def test_a_property_deletes_no_ledger_of_another_topic_or_kind(world: SharedStorage) -> None:
    """A client gives a subscription any properties."""
    texts = named(
        topic=bucket(world, 911, "persistent://public/default/other"), kind=bucket(world, 912, component=b"schema"),
        name=bucket(world, 913, "no/name/of/a/topic/at/all"),
    )  # fmt: skip
    ledger = await opened(world, texts)
    own = ledger.ledgers.first_position.ledger_id
    await ledger.open_cursor("t", EARLIEST, named(own=own))
    await ledger.delete_cursor("s")
    await ledger.delete_cursor("t")
    assert {911, 912, 913, own} <= world.bookkeeper.ledgers.keys()


async def test_a_cursor_stays_while_its_buckets_cannot_be_deleted(
    world: SharedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await opened(world, named(a=bucket(world, 901)))

    async def fail(_: int) -> None:
        raise MetadataUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(world.bookkeeper, "read_metadata", fail)
        with pytest.raises(StorageUnavailable, match="keeps of delayed messages: away"):
            await ledger.delete_cursor("s")
    assert "s" in ledger.cursors
    await ledger.delete_cursor("s")
    assert 901 in world.bookkeeper.deleted


async def test_properties_of_brokers_stay_when_those_of_a_subscription_are_replaced(world: SharedStorage) -> None:
    texts = named(a=901)
    ledger = await opened(world, texts)
    await ledger.cursors["s"].set_string_properties({"c": "d"})
    assert ledger.cursors["s"].string_properties == {"c": "d", **texts}
