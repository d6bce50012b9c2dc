"""What is asked of a whole subscription: seeks, and who may remove it."""

import asyncio

import pytest

from broker.errors import MetadataFailure, NotReady
from magnetar_core.runtime.tasks import in_turns
from managed_ledger.position import EARLIEST, Position
from tests.support.waiting import settle
from tests.unit.broker.topic.dispatching import EXCLUSIVE, SHARED, Bench, entry


async def test_seek_disconnects_before_it_moves() -> None:
    bench = Bench()
    await bench.append(*map(entry, range(4)))
    peer = bench.join(1, SHARED, permits=10)
    bench.ack(1, 0, 1, 2, 3)
    await bench.subscription.reset_to(Position(1, 2), announce=in_turns)
    assert peer.told == ["closed"]
    assert bench.join(2, SHARED, permits=10).got == [2, 3]
    await bench.subscription.reset_to(EARLIEST, announce=in_turns)
    assert bench.join(3, EXCLUSIVE, permits=10).got == [0, 1, 2, 3]


async def test_no_consumer_is_there_again_before_a_seek_is_checked() -> None:
    bench = Bench()
    bench.join(1, EXCLUSIVE, permits=10)
    checked = asyncio.Event()

    async def check() -> None:
        await checked.wait()

    seeking = asyncio.ensure_future(bench.subscription.reset_to(EARLIEST, check=check, announce=in_turns))
    await settle()
    with pytest.raises(NotReady, match="is fenced"):
        bench.join(2, EXCLUSIVE)
    checked.set()
    await seeking
    bench.join(2, EXCLUSIVE)


async def test_only_the_single_consumer_may_unsubscribe() -> None:
    bench = Bench()
    bench.join(1, SHARED)
    bench.join(2, SHARED)
    with pytest.raises(MetadataFailure):
        bench.subscription.check_may_unsubscribe(bench.consumers[1])
    bench.leave(2)
    bench.subscription.check_may_unsubscribe(bench.consumers[1])


async def test_who_leaves_by_itself_before_it_is_told_is_not_told() -> None:
    bench = Bench()
    leaves, stays = bench.join(1, SHARED), bench.join(2, SHARED)
    bench.subscription.detach_consumers()
    bench.subscription.remove_consumer(bench.consumers[1])
    for _ in bench.subscription.notify_detached():
        pass
    assert (leaves.told, stays.told) == ([], ["closed"])
