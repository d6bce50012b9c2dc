"""What a subscription reads, and when (the rules are those of `broker/topic/reading/pump.py`)."""

import pytest

from broker.topic.dispatchers.dispatcher import Read
from broker.topic.reading.pump import within_room
from magnetar_core.runtime.tasks import in_turns
from managed_ledger.position import Position
from tests.unit.broker.topic.dispatching import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Bench, Peer, entry


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
async def test_entries_that_are_there_when_the_cursor_is_rewound_come_behind_what_is_before_them(kind: int) -> None:
    """A read has ended, and is handed over in a later turn of the loop: meanwhile everything is to come again."""
    bench = Bench(failover_delay_ms=0, read_entries_max=2)
    await bench.append(*map(entry, range(2)))
    peer = bench.join(1, kind, permits=100, priority=1)
    bench.ledger.cold = True
    await bench.append(*map(entry, range(2, 4)))
    work, done = bench.host.fetching.pop()
    entries = await work
    if kind == FAILOVER:
        peer = bench.join(2, kind, permits=100)  # comes before the first one, and is active now
    else:
        peer.got.clear()
        bench.redeliver(1)
    done(entries)
    await bench.host.finish_fetching()
    assert peer.got == [0, 1, 2, 3]


async def test_a_cold_read_that_a_seek_overtakes_delivers_nothing() -> None:
    bench = Bench()
    await bench.append(*map(entry, range(4)))
    bench.ledger.cold = True
    gone = bench.join(1, EXCLUSIVE, permits=10)
    await bench.subscription.reset_to(Position(1, 3), announce=in_turns)
    there = bench.join(2, EXCLUSIVE, permits=10)
    await bench.host.finish_fetching()
    assert (gone.got, there.got) == ([], [3])


async def test_a_failed_read_is_tried_again() -> None:
    bench = Bench()
    await bench.append(entry(0))
    bench.ledger.cold = True
    peer = bench.join(1, EXCLUSIVE, permits=10)
    work, done = bench.host.fetching.pop()
    await work
    bench.cursor.rewind()
    done(None)
    assert bench.host.fetching == []
    bench.pass_time(0.2)
    await bench.host.finish_fetching()
    assert peer.got == [0]


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
async def test_nothing_brings_a_failed_read_again_before_its_time(kind: int) -> None:
    """What goes on at the topic and at its connections must not make it a thousand reads a second."""
    bench = Bench(failover_delay_ms=0)
    await bench.append(entry(0))
    bench.ledger.cold = True
    bench.join(1, kind, permits=10)
    for tried, wait_s in enumerate((0.1, 0.2, 0.4), 1):
        work, done = bench.host.fetching.pop()
        await work
        bench.cursor.rewind()
        done(None)
        bench.subscription.pump.run()  # there is room in its connection again
        bench.flow(1, 5)
        await bench.append(entry(tried))
        bench.pass_time(wait_s - 0.01)
        assert bench.host.fetching == []
        bench.pass_time(0.01)
    assert len(bench.host.fetching) == 1
    work, done = bench.host.fetching.pop()
    await work
    done(None)
    await bench.subscription.reset_to(Position(1, 1), announce=in_turns)
    again = bench.join(2, kind, permits=10)  # somewhere else it is tried at once
    await bench.host.finish_fetching()
    assert again.got == [1, 2, 3]


READ = Read(None, 10, 500)


@pytest.mark.parametrize(
    ("room_bytes", "is_idle", "expected"),
    [
        (501, False, READ),
        (500, None, READ),
        (499, False, Read(None, 10, 499)),
        (0, False, None),
        (0, None, None),
        (0, True, Read(None, 1, 500)),
        (-1, True, Read(None, 1, 500)),
    ],
)
def test_a_read_has_room_or_waits_unless_its_client_has_nothing(
    room_bytes: int, is_idle: bool | None, expected: Read | None
) -> None:
    """*is_idle*: the connection that gets all of the read; None: there is no such connection."""
    room = None if is_idle is None else Peer()
    if room is not None:
        room.is_idle = is_idle is True
    assert within_room(READ, room_bytes, room) == expected
