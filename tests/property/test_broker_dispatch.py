"""Random lives of a subscription: whatever consumers do, nothing is lost, nobody is stuck, keys keep their order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from managed_ledger.position import Position
from tests.unit.broker.topic.dispatching import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Bench, entry

KEYS = 7


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
async def test_every_entry_is_acknowledged_in_the_end(kind: int, seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(
        partition=0,
        read_entries_max=rng.choice([1, 3, 100]),
        round_robin_messages=rng.choice([1, 20]),
        unacked_per_consumer_max=rng.choice([0, 5]),
        failover_delay_ms=rng.choice([0, 1000]),
    )
    bench.ledger.cold = rng.random() < 0.5
    written = joined = 0
    for _ in range(rng.randrange(10, 80)):
        present = list(bench.consumers)
        match rng.choices(
            ["append", "join", "leave", "flow", "ack", "redeliver", "time", "read", "pause"],
            [30, 6, 3, 20, 30, 8, 5, 20, 4],
        )[0]:
            case "append":
                count = rng.randrange(1, 6)
                batch = rng.choice([None, 3])
                await bench.append(
                    *(entry(written + n, key=f"k{(written + n) % KEYS}", batch=batch) for n in range(count))
                )
                written += count
            case "join" if len(present) < (1 if kind == EXCLUSIVE else 4):
                joined += 1
                bench.join(joined, kind, permits=rng.choice([0, 1, 10]))
            case "leave" if present:
                bench.leave(rng.choice(present))
            case "flow" if present:
                bench.flow(rng.choice(present), rng.randrange(1, 10))
            case "ack" if present:
                _acknowledge(bench, rng, rng.choice(present))
            case "redeliver" if present:
                number = rng.choice(present)
                pending = [position.entry_id for position in bench.consumers[number].pending]
                bench.redeliver(number, *rng.sample(pending, min(2, len(pending))))
            case "time":
                bench.pass_time(rng.random())
            case "read":
                await bench.host.finish_fetching()
                bench.check()
            case "pause" if present:
                peer = bench.peers[rng.choice(present)]
                peer.is_writable = not peer.is_writable
                bench.subscription.pump()
        if kind == KEY_SHARED:
            _check_keys(bench)
    await _drain(bench, kind, joined)
    _check_first_deliveries(bench, kind)
    assert bench.cursor.backlog() == 0, f"not delivered: {bench.cursor.mark_delete_position} of {written}"


def _acknowledge(bench: Bench, rng: random.Random, number: int) -> None:
    peer = bench.peers[number]
    open_entries = [e for e in peer.got if not bench.cursor.is_deleted(Position(1, e))]
    if open_entries:
        bench.ack(number, *rng.sample(open_entries, min(len(open_entries), rng.randrange(1, 4))))


def _check_keys(bench: Bench) -> None:
    """The entries of a key that wait for an ack are all at one consumer."""
    holder: dict[int, int] = {}
    for number, consumer in bench.consumers.items():
        for position in consumer.pending:
            assert holder.setdefault(position.entry_id % KEYS, number) == number


def _check_first_deliveries(bench: Bench, kind: int) -> None:
    """Entries that are sent for the first time are in order: all of them, or those with one key."""
    for key in range(KEYS):
        first = list(dict.fromkeys(e for e in bench.log if kind in (EXCLUSIVE, FAILOVER) or e % KEYS == key))
        if kind != SHARED:
            assert first == sorted(first)


async def _drain(bench: Bench, kind: int, joined: int) -> None:
    """The faults are over: one more consumer is added, and all consumers read and acknowledge."""
    for number in list(bench.consumers):
        bench.leave(number)
    bench.join(joined + 1, kind, permits=100_000)
    peer = bench.peers[joined + 1]
    for _ in range(200):
        bench.pass_time(6.0)
        await bench.host.finish_fetching()
        bench.ack(joined + 1, *peer.got)
        if not bench.cursor.backlog():
            return
