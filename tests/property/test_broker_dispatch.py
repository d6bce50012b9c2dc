"""Random lives of a subscription: whatever consumers do, nothing is lost, nobody is stuck, keys keep their order."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from managed_ledger.messages import metadata_of, split_entry
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
                number = rng.choice(present)
                bench.write(number, may=not bench.peers[number].is_writable)
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


# ------------------------------------------------------------------------------------ messages in chunks


class Assembling:
    """A consumer's client: it puts messages together from chunks that come in order and once, as C++'s and Go's do."""

    def __init__(self, bench: Bench, number: int, chunk_of: Mapping[int, tuple[str, int, int]]) -> None:
        self.whole: list[list[int]] = []
        """Entry ids of messages that are not acknowledged."""
        self._bench = bench
        self._number = number
        self._chunk_of = chunk_of
        self._seen = 0
        self._begun: dict[str, list[int]] = {}

    def take(self) -> None:
        """Look at what came; a chunk that is not the last costs the application nothing, so its permit goes back."""
        got = self._bench.peers[self._number].got
        came, self._seen = got[self._seen :], len(got)
        permits = 0
        for entry_id in came:
            uuid, at, count = self._chunk_of.get(entry_id, ("", 0, 1))
            chunks = self._begun.setdefault(uuid, [])
            assert len(chunks) == at, f"chunk {at} of {uuid} came to {self._number}, which has {chunks}"
            chunks.append(entry_id)
            if at == count - 1:
                self.whole.append(self._begun.pop(uuid))
            else:
                permits += 1
        if permits:
            self._bench.flow(self._number, permits)

    def acknowledge(self, rng: random.Random) -> None:
        if self.whole:
            message = self.whole.pop(rng.randrange(len(self.whole)))
            self._bench.ack(self._number, *message)

    def give_back(self, rng: random.Random) -> None:
        if self.whole:
            message = self.whole.pop(rng.randrange(len(self.whole)))
            self._bench.redeliver(self._number, *rng.choice([message, message[:1], message[-1:]]))

    def give_all_back(self) -> None:
        """It empties its queue, too."""
        got = self._bench.peers[self._number].got
        came, self._seen = len(got) - self._seen, len(got)
        self.whole.clear()
        self._begun.clear()
        self._bench.redeliver(self._number)
        self._bench.flow(self._number, came)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
async def test_every_message_in_chunks_is_put_together_by_one_consumer(kind: int, seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(
        read_entries_max=rng.choice([1, 3, 100]),
        round_robin_messages=rng.choice([1, 20]),
        unacked_per_consumer_max=rng.choice([0, 3]),
        unacked_per_subscription_max=rng.choice([0, 0, 6]),
        delayed_strict=rng.random() < 0.5,
    )
    bench.ledger.cold = rng.random() < 0.5
    chunk_of: dict[int, tuple[str, int, int]] = {}
    clients: dict[int, Assembling] = {}
    producers = [(f"p{number}", f"k{number % 2}") for number in range(rng.randrange(1, 5))]
    sending: dict[str, list[bytes]] = {}
    written = messages = joined = 0

    async def publish(number: int) -> None:
        """The next entry of a producer: a chunk, or a message of one entry."""
        nonlocal written, messages
        name, key = producers[number]
        if not sending.get(name):
            count = rng.choice([1, 2, 3, 6])
            messages += 1
            at_ms = bench.host.now_ms() + rng.randrange(3_000) if rng.random() < 0.2 else None
            uuid = f"{name}-{messages}"
            parts = [entry(messages, key=key, chunk=(uuid, at, count), deliver_at_ms=at_ms) for at in range(count)]
            begun = rng.randrange(count) if rng.random() < 0.2 else 0  # its connection is lost, and it sends all again
            sending[name] = [*parts[:begun], *parts]
        data = sending[name].pop(0)
        metadata = metadata_of(split_entry(data))
        if metadata.num_chunks_from_msg > 1:
            chunk_of[written] = (metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)
        written += 1
        await bench.append(data)

    def join(permits: int) -> None:
        nonlocal joined
        joined += 1
        clients[joined] = Assembling(bench, joined, chunk_of)
        bench.join(joined, kind, permits=permits)

    for _ in range(rng.randrange(10, 100)):
        present = list(clients)
        match rng.choices(
            ["publish", "join", "leave", "flow", "take", "ack", "redeliver", "all", "time", "read", "pause"],
            [40, 6, 3, 15, 30, 20, 8, 2, 5, 20, 4],
        )[0]:
            case "publish":
                await publish(rng.randrange(len(producers)))
            case "join" if len(present) < 4:
                join(rng.choice([0, 1, 10]))
            case "leave" if present:
                number = rng.choice(present)
                del clients[number]
                bench.leave(number)
            case "flow" if present:
                bench.flow(rng.choice(present), rng.randrange(1, 5))
            case "take" if present:
                clients[rng.choice(present)].take()
            case "ack" if present:
                clients[rng.choice(present)].acknowledge(rng)
            case "redeliver" if present:
                clients[rng.choice(present)].give_back(rng)
            case "all" if present:
                clients[rng.choice(present)].give_all_back()
            case "time":
                bench.pass_time(rng.random())
            case "read":
                await bench.host.finish_fetching()
                bench.check()
            case "pause" if present:
                number = rng.choice(present)
                bench.write(number, may=not bench.peers[number].is_writable)
    # The faults are over: producers send the rest, all consumers read and acknowledge. Nobody has to leave for it.
    for number, (name, _) in enumerate(producers):
        while sending.get(name):
            await publish(number)
    if not clients:
        join(0)
    for number in clients:
        bench.write(number, may=True)
    for _ in range(300):
        for number, client in clients.items():
            bench.flow(number, 3)
            client.take()
            while client.whole:
                client.acknowledge(rng)
        bench.pass_time(1.0)
        await bench.host.finish_fetching()
        bench.check()
        if not bench.cursor.backlog():
            break
    assert bench.cursor.backlog() == 0, f"not put together: behind {bench.cursor.mark_delete_position} of {written}"
