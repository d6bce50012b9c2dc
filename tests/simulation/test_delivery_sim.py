"""Seeded runs of one topic with subscriptions of every type over many short ledgers. A seed is a whole run.

The topic, its subscriptions and dispatchers, the managed ledger, its cursors and their storage are the real code; below
them is BookKeeper in memory. The clients are models of the official ones and acknowledge as those do: single messages;
cumulatively; inside batches; before the first message of a batch by naming the entry before it (entry -1 at the start
of a ledger); late; twice; messages from before a reconnect; messages of ledgers that were trimmed since.

What may happen: publishing, permits, acks in any order, redelivery, consumers that connect and disconnect, seeks,
trims, an orderly unload of the topic, a takeover by another broker while the former owner lives. In some runs the topic
comes into a resource group and leaves it, and the group's rates change.

What must hold after each event (`Machine.check`):

1. The entries dispatched to the one active consumer are contiguous over the list of ledgers, except acknowledged ones.
2. On a Shared or Key_Shared subscription, an entry that was read and is not acknowledged is either at a consumer or
   waits for redelivery: none is skipped.
3. No message is acknowledged that no client acknowledged (or skipped by a seek).
4. If there are permits and a backlog, a read is under way or a timer is set.
5. Every stored position names an existing entry, or entry -1.

At the end every message that no client acknowledged is delivered to new consumers.

`SEED=8315` repeats one run.
"""

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from broker.memory_budget import MemoryBudget
from broker.policies.namespace import new_policies, parse_policies
from broker.records.json_records import to_json
from broker.settings.config import BrokerConfig
from broker.settings.quotas import DispatchRate, GroupRates, PublishRate
from broker.topic.clients.consumer import Consumer
from broker.topic.dispatchers.kinds import KeySharedPolicy
from broker.topic.dispatchers.shared import SharedDispatcher
from broker.topic.ports import NextBroker
from broker.topic.rates.resource_group import ResourceGroup
from broker.topic.reading.subscription import Subscription
from broker.topic.requests import SubscribeRequest
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import Buffer
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.messages import encode_entry, parse_metadata
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.retention import RetentionRule, RolloverRule
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.support.sole_owner import SoleOwner

COUNT = int(os.environ.get("MAGNETAR_SIM_SEEDS", "40"))
# Those behind COUNT found something once: entries that were read before a rewind and handed over after it (850, 1125),
# a cursor's node that a former owner wrote after the new one had read it (547).
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else sorted({*range(COUNT), 547, 850, 1125})

NAME: Final = TopicName.parse("persistent://public/default/t")
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = (
    wire.CommandSubscribe.Exclusive,
    wire.CommandSubscribe.Shared,
    wire.CommandSubscribe.Failover,
    wire.CommandSubscribe.Key_Shared,
)
IN_ORDER: Final = (EXCLUSIVE, FAILOVER)
MINUS_ONE: Final = 2**64 - 1

Message = tuple[Position, int]
"""An entry and a message's index in its batch."""


class Client:
    """One consumer as an official client has it; the sink of the broker's one."""

    is_writable = True
    room_bytes = 1 << 20
    is_idle = True

    def __init__(self, number: int, kind: int) -> None:
        self.number = number
        self.kind = kind
        self.received: list[Message] = []
        self.entries: list[Position] = []
        """Entries of the present run: since the consumer connected, or since a redelivery of everything."""
        self.sizes: dict[Position, int] = {}
        self.done: dict[Position, set[int]] = {}
        """Messages of batches that were acknowledged one by one."""
        self.is_gone = False
        self.consumer = Consumer(self, self.deliver, number, f"c{number}")

    def deliver(
        self,
        consumer: Consumer,
        position: Position,
        entry: Buffer,
        messages: int,
        redelivery_count: int,
        ack_set: Sequence[int] | None,
    ) -> int:
        size = parse_metadata(entry).num_messages_in_batch
        self.sizes[position] = size
        self.entries.append(position)
        for index in range(size):
            if not ack_set or ack_set[0] >> index & 1:
                self.received.append((position, index))
        return len(entry)

    def reserve(self, size_bytes: int) -> None: ...

    async def is_alive(self) -> bool:
        return not self.is_gone

    def on_closed(self, consumer: Consumer, next_broker: NextBroker) -> None:
        self.is_gone = True

    def on_active_change(self, consumer: Consumer, is_active: bool) -> None:
        if is_active:
            self.entries.clear()  # everything unacknowledged comes again

    def on_end_of_topic(self, consumer: Consumer) -> None: ...


@dataclass
class Model:
    """What is known of a subscription."""

    name: str
    kind: int
    durable: bool
    clients: list[Client] = field(default_factory=list)
    acknowledged: set[Message] = field(default_factory=set)
    """Messages that clients acknowledged, or that a seek skipped."""
    under_way: list[wire.CommandAck] = field(default_factory=list)


def message_id(position: Position, ack_set: Sequence[int] = (), size: int = 0) -> dict[str, Any]:
    made: dict[str, Any] = {"ledgerId": position.ledger_id & MINUS_ONE, "entryId": position.entry_id & MINUS_ONE}
    if ack_set:
        made |= {"ack_set": list(ack_set), "batch_size": size}
    return made


class Machine:
    """The world of one seed."""

    def __init__(self, seed: int, *, in_groups: bool = False) -> None:
        """*in_groups*: the topic comes into a resource group and leaves it. What is drawn else stays the same."""
        self.rng = rng = random.Random(seed)
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock)
        self.bookkeeper = MemoryBookKeeper()
        self.index_acks = rng.random() < 0.5
        self.trims = rng.random() < 0.4
        self.cache_bytes = rng.choice([1, 8_000, 1 << 20])
        self.config = BrokerConfig(batch_index_acks=self.index_acks, failover_delay_ms=0, max_read_batch_entries=7)
        keep = RetentionRule() if self.trims else RetentionRule(time_ms=-1, bytes_max=-1)
        self.ledger_config = ManagedLedgerConfig(
            rollover=RolloverRule(entries_max=rng.randint(2, 6), bytes_max=1 << 30, age_max_ms=1 << 40, age_min_ms=0),
            retention=keep,
            mark_delete_interval_s=0.0,
        )
        self.stored: dict[Position, int] = {}
        """Every entry that was ever stored → how many messages it has."""
        self.order: list[Position] = []
        self.models: dict[str, Model] = {}
        self.numbers = 0
        self.sequence = 0
        self.append_errors: list[Exception] = []
        self.group_rng = random.Random(seed) if in_groups else None
        self.group = ResourceGroup("g", self.clock.wall_ms, lambda ms, step: self.clock.call_later(ms / 1000, step))
        self.is_in_group = False
        self.topic: Topic
        self.former: list[tuple[Topic, ManagedLedgerFactory]] = []
        self.factory: ManagedLedgerFactory

    # ------------------------------------------------------------------------------ the broker

    async def open(self) -> None:
        self.factory = ManagedLedgerFactory(
            self.bookkeeper.session().client,
            self.store.session(),
            self.clock,
            self.ledger_config,
            cache_bytes_max=self.cache_bytes,
        )
        ledger = await self.factory.open(NAME.managed_ledger_name)
        budget = MemoryBudget(1 << 30, self.clock.call_later)
        policies = parse_policies(to_json(new_policies("lab", 4)), "public/default")
        self.topic = Topic(NAME, ledger, self.config, policies, SoleOwner(), self.clock, lambda topic: None, budget)
        await self.topic.load()
        self.topic.join(self.group if self.is_in_group else None)
        ledger.listener = self  # publishing is ours

    @property
    def ledger(self) -> ManagedLedger:
        return self.topic.ledger

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[int]) -> None:
        for entry_id, size in enumerate(contexts, first_entry_id):
            position = Position(ledger_id, entry_id)
            self.stored[position] = size
            self.order.append(position)

    def on_append_failed(self, contexts: Sequence[int], error: Exception) -> None:
        self.append_errors.append(error)  # raised where somebody waits: here it would only be logged

    def on_closed(self, error: Exception) -> None: ...

    async def publish(self) -> None:
        count = self.rng.randint(1, 8)
        sizes = [self.rng.choice([1, 1, 2, 3, 5]) for _ in range(count)]
        entries = []
        for size in sizes:
            self.sequence += 1
            metadata = MessageMetadata(
                producer_name="p",
                sequence_id=self.sequence,
                publish_time=1,
                num_messages_in_batch=size,
                partition_key=f"k{self.rng.randint(0, 5)}",
            )
            entries.append(encode_entry(metadata, bytes(size * 8)))
        wanted = len(self.order) + count
        self.ledger.append(entries, sizes)
        while len(self.order) < wanted:
            assert not self.append_errors, f"nothing fails here: {self.append_errors}"
            await asyncio.sleep(0)

    async def unload(self) -> None:
        """Unload the topic in order: every ack is stored."""
        await self.topic.close()
        await self.factory.close()
        await self.open()
        self.forget_readers()

    async def take_over(self) -> None:
        """Another broker opens the topic; the former owner lives and does not know it yet."""
        former = self.topic, self.factory
        await self.open()
        self.former.append(former)
        for model in self.models.values():
            for client in model.clients:
                client.is_gone = True
            model.clients.clear()
        self.forget_readers()

    def forget_readers(self) -> None:
        for model in list(self.models.values()):
            if not model.durable:
                del self.models[model.name]

    # ------------------------------------------------------------------------------ clients

    def subscription(self, model: Model) -> Subscription | None:
        return self.topic.subscriptions.get(model.name)

    def living(self, model: Model) -> list[Client]:
        gone = [client for client in model.clients if client.is_gone]
        for client in gone:
            model.clients.remove(client)
        return model.clients

    async def join(self, model: Model) -> Client | None:
        living = self.living(model)
        if model.kind == EXCLUSIVE and living:
            return None
        self.numbers += 1
        client = Client(self.numbers, model.kind)
        await self.topic.subscribe(
            SubscribeRequest(
                client.consumer,
                model.name,
                model.kind,
                model.durable,
                EARLIEST if not model.durable else None,
                True,
                0,
                KeySharedPolicy(),
                {},
            )
        )
        model.clients.append(client)
        return client

    async def leave(self, model: Model) -> None:
        client = self.rng.choice(model.clients)
        client.is_gone = True
        model.clients.remove(client)
        self.topic.detach_consumer(client.consumer)
        if not model.durable and not model.clients:
            del self.models[model.name]

    def make_ack(self, model: Model, client: Client) -> wire.CommandAck | None:
        """As an official client acknowledges what it has received."""
        if not client.received:
            return None
        position, index = self.rng.choice(client.received[-12:])
        size = client.sizes[position]
        ack = wire.CommandAck(consumer_id=client.number)
        if model.kind in IN_ORDER and self.rng.random() < 0.7:
            ack.ack_type = wire.CommandAck.Cumulative
            if index == size - 1:
                ack.message_id.add(**message_id(position))
                model.acknowledged |= self.messages_up_to(position, index)
            elif self.index_acks and self.rng.random() < 0.5:
                left = ((1 << size) - 1) & ~((1 << (index + 1)) - 1)
                ack.message_id.add(**message_id(position, [left], size))
                model.acknowledged |= self.messages_up_to(position, index)
            else:  # the entry before it; -1 at the first one of a ledger
                ack.message_id.add(**message_id(Position(position.ledger_id, position.entry_id - 1)))
                model.acknowledged |= self.messages_up_to(position, -1)
            return ack
        ack.ack_type = wire.CommandAck.Individual
        done = client.done.setdefault(position, set())
        done.add(index)
        if len(done) == size:
            ack.message_id.add(**message_id(position))
            model.acknowledged |= {(position, one) for one in range(size)}
        elif self.index_acks:
            left = ((1 << size) - 1) & ~sum(1 << one for one in done)
            ack.message_id.add(**message_id(position, [left], size))
            model.acknowledged |= {(position, one) for one in done}
        else:
            return None
        return ack

    def messages_up_to(self, position: Position, index: int) -> set[Message]:
        found = {(one, at) for one in self.order if one < position for at in range(self.stored[one])}
        return found | {(position, at) for at in range(index + 1)}

    def send_ack(self, model: Model, ack: wire.CommandAck) -> None:
        """Send an ack over the client's present connection."""
        subscription = self.subscription(model)
        living = self.living(model)
        if subscription is None or not living:
            return
        subscription.acking.acknowledge(self.rng.choice(living).consumer, ack)

    def redeliver(self, model: Model) -> None:
        subscription, client = self.subscription(model), self.rng.choice(self.living(model))
        assert subscription is not None
        if model.kind in IN_ORDER:
            if subscription.active_consumer is client.consumer:
                client.entries.clear()
            subscription.redeliver(client.consumer, None, None)
            return
        chosen = [one for one in client.consumer.pending if self.rng.random() < 0.5]
        subscription.redeliver(client.consumer, chosen or None, None)

    async def seek(self, model: Model) -> None:
        subscription = self.subscription(model)
        assert subscription is not None
        some = self.rng.choice(self.order)
        target = self.rng.choice(
            [EARLIEST, LATEST, some, Position(some.ledger_id, -1), Position(some.ledger_id, 2**40)]
        )
        await self.topic.seek(subscription, target)
        first = subscription.cursor.read_position
        model.acknowledged = {(one, at) for one in self.order if one < first for at in range(self.stored[one])}
        if target != LATEST:
            beyond = [one for one in self.order if one >= target and one in self.existing()]
            assert not beyond or first <= beyond[0], f"a seek to {target} went to {first}"
        model.under_way.clear()
        model.clients.clear()

    # ------------------------------------------------------------------------------ what must hold

    def existing(self) -> set[Position]:
        """Entries that are not trimmed."""
        first = self.ledger.ledgers.first_position
        return {one for one in self.order if one >= first}

    def check(self) -> None:
        existing = sorted(self.existing())
        for model in self.models.values():
            subscription = self.subscription(model)
            if subscription is None:
                continue
            cursor = subscription.cursor
            mark = cursor.mark_delete_position
            assert mark.entry_id == -1 or mark in self.stored, f"rule 5: {model.name} at {mark}"
            for position in existing:
                size = self.stored[position]
                words = cursor.batch_ack_set(position)
                for index in range(size):
                    is_done = cursor.is_deleted(position) or (words is not None and not words[0] >> index & 1)
                    if is_done:
                        assert (position, index) in model.acknowledged, f"rule 3: {model.name}, {position} {index}"
            assert not subscription.pump.is_stuck, f"rule 4: {model.name}"
            if model.kind in IN_ORDER:
                for client in self.living(model):
                    self.check_contiguous(model, client, existing)
            elif not subscription.pump.is_reading:
                self.check_nothing_passed_over(model, subscription, existing)

    def check_contiguous(self, model: Model, client: Client, existing: list[Position]) -> None:
        """Rule 1."""
        for before, after in zip([Position(-1, -1), *client.entries], client.entries, strict=False):
            assert after > before, f"{model.name}: {after} came after {before}"
            for position in existing:
                if before < position < after:
                    missing = [at for at in range(self.stored[position]) if (position, at) not in model.acknowledged]
                    assert not missing, f"rule 1: {model.name} got {after} after {before}, without {position}"

    def check_nothing_passed_over(self, model: Model, subscription: Subscription, existing: list[Position]) -> None:
        """Rule 2."""
        dispatcher = subscription.pump.dispatcher
        if not isinstance(dispatcher, SharedDispatcher) or not dispatcher.consumers:
            return
        held = {one for consumer in dispatcher.consumers for one in consumer.pending}
        waiting = {one for one, _ in dispatcher._replay}
        for position in existing:
            if position < subscription.cursor.read_position and not subscription.cursor.is_deleted(position):
                assert position in held or position in waiting, f"rule 2: {model.name} passed over {position}"

    def change_group(self, rng: random.Random) -> None:
        """Rates are low beside what a run dispatches in its time: most of it waits in the group."""
        if rng.random() < 0.5:
            self.group.use(
                GroupRates(PublishRate(0, 0), DispatchRate(rng.choice([0, 20, 500]), rng.choice([0, 1_000, 50_000]), 1))
            )
        else:
            self.is_in_group = not self.is_in_group
            self.topic.join(self.group if self.is_in_group else None)

    async def settle(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    # ------------------------------------------------------------------------------ a run

    async def step(self) -> None:
        rng = self.rng
        model = rng.choice(list(self.models.values()))
        living = self.living(model)
        event = rng.choices(
            ["publish", "flow", "ack", "late", "redeliver", "join", "leave", "seek", "trim", "unload", "take over"],
            [16, 22, 26, 10, 4, 10, 4, 2, 3, 2, 1],
        )[0]
        match event:
            case "publish":
                await self.publish()
            case "flow" if living:
                client = rng.choice(living)
                subscription = self.subscription(model)
                assert subscription is not None
                subscription.flow(client.consumer, rng.choice([1, 2, 5, 100]))
            case "ack" if living:
                ack = self.make_ack(model, rng.choice(living))
                if ack is not None:
                    kept = rng.random()
                    if kept < 0.8:
                        self.send_ack(model, ack)
                    if kept > 0.7:
                        model.under_way.append(ack)
            case "late" if model.under_way and living:
                at = rng.randrange(len(model.under_way))
                self.send_ack(model, model.under_way[at] if rng.random() < 0.3 else model.under_way.pop(at))
            case "redeliver" if living:
                self.redeliver(model)
            case "join" if len(living) < 3:
                await self.join(model)
            case "leave" if living:
                await self.leave(model)
            case "seek" if model.durable and self.order and living:
                await self.seek(model)
            case "trim":
                for cursor in self.ledger.cursors.values():
                    await cursor.flush()
                await self.ledger.trim()
            case "unload":
                await self.unload()
            case "take over":
                await self.take_over()

    def add_models(self) -> None:
        for name, kind in (("e", EXCLUSIVE), ("s", SHARED), ("f", FAILOVER), ("k", KEY_SHARED)):
            self.models.setdefault(name, Model(name, kind, True))

    async def run(self, steps: int) -> None:
        await self.open()
        self.add_models()
        for model in self.models.values():  # all see everything
            await self.join(model)
        for number in range(steps):
            if number % 20 == 10:
                self.numbers += 1
                reader = f"reader-{self.numbers}"
                self.models[reader] = Model(reader, EXCLUSIVE, False)
                await self.join(self.models[reader])
            await self.step()
            if self.group_rng is not None and self.group_rng.random() < 0.2:
                self.change_group(self.group_rng)
            if self.rng.random() < 0.7:
                await self.settle()
            self.check()
        self.is_in_group = False
        self.topic.join(None)
        assert self.group.waiting_count == 0 or self.former, "whoever left the group waits there no more"
        await self.end()

    async def end(self) -> None:
        """Assert that every message which no client acknowledged is delivered."""
        await self.publish()
        for model in [one for one in self.models.values() if one.durable]:
            for client in list(self.living(model)):
                client.is_gone = True
                self.topic.detach_consumer(client.consumer)
            model.clients.clear()
            client_or_none = await self.join(model)
            assert client_or_none is not None
            client = client_or_none
            subscription = self.subscription(model)
            assert subscription is not None
            subscription.flow(client.consumer, 1_000_000)
            wanted = {
                (position, at)
                for position in self.existing()
                for at in range(self.stored[position])
                if (position, at) not in model.acknowledged
            }
            for _ in range(2_000):
                if wanted <= set(client.received):
                    break
                await asyncio.sleep(0)
            missing = sorted(wanted - set(client.received))
            assert not missing, f"{model.name}: {len(missing)} messages never come, the first is {missing[0]}"
        self.check()

    async def close(self) -> None:
        for topic, factory in [*self.former, (self.topic, self.factory)]:
            topic.abandon("the run is over")
            await topic.finish()
            await factory.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_no_client_acknowledged_is_delivered_whatever_happens_in_between(seed: int) -> None:
    machine = Machine(seed)
    try:
        await machine.run(steps=120)
    finally:
        await machine.close()


@pytest.mark.parametrize("seed", SEEDS[: len(SEEDS) // 2 + 1])
async def test_nothing_is_lost_in_a_resource_group_and_nobody_waits_there_who_has_left(seed: int) -> None:
    machine = Machine(seed, in_groups=True)
    try:
        await machine.run(steps=120)
    finally:
        await machine.close()
