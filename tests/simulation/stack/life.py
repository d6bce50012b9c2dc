"""A seed is the life of a whole cluster: sizes, settings, load, faults and operators are drawn from it.

Fault model, for the first part of the life: `magnetar.testing.simulated.faults`, consumers that seek, clients that ask
for their consumer or producer once more on a connection that stays, and operators who change policies.
Applications produce, and acknowledge at once, late, in another order, cumulatively, or not at all.

Then the faults stop, all machines are up, and the life goes on until everything has been received. Checked:

1. What was acknowledged to a producer is at its position for every reader, once where the position is concerned.
2. Each subscription gets each acknowledged message at least once.
3. Exclusive and Failover get the messages of a producer in order, at their first delivery.
4. Positions that are acknowledged to one producer go up.
5. Everything settles: producers have no message that waits, subscriptions have no backlog.
6. With de-duplication no message is there twice.
   Messages that are delayed do not come early; subscriptions that know no delay get them at once.
7. What `tests.simulation.stack.checks` says.
8. A request that is made ANSWERED_S after the faults is answered; one that was made before, and whose connection is
   there, too.
9. Jobs of Spark read what was acknowledged (`tests.simulation.stack.spark_jobs`).
10. In one session of a consumer nothing comes twice that was not given back; to an exclusive one positions go up.
11. After a seek to the begin that was answered, all that was there comes again.
12. What `tests.simulation.stack.remains` says.
"""

import asyncio
import logging
import math
import random
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from autorecovery.config import AutoRecoveryConfig
from broker.settings.config import BrokerConfig
from broker.wire import pulsar_pb2 as wire
from magnetar.testing.simulated.cluster import BOOKIE, BrokerMachine, SimulatedCluster
from magnetar.testing.simulated.faults import Faults, unrepaired
from magnetar.testing.simulated.loop import WALL_MS, Process
from magnetar.testing.simulated.network import NetworkLoop
from magnetar.testing.simulated.under_test import drawn_from
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.ledgers.topic_record import stored_record
from tests.simulation.stack.administered import Aged, Partitioned, Resent, Secret
from tests.simulation.stack.applications import Deleted, Keyed, Orders
from tests.simulation.stack.checks import ClosedLedgers, OwnErrors, in_use, losses, lost_permits, undelivered
from tests.simulation.stack.operators import Operators
from tests.simulation.stack.pulsar_client import Consumer, Producer, PulsarClient, Received
from tests.simulation.stack.remains import Circles, lacking, outdated, registered, unnamed
from tests.simulation.stack.spark_jobs import SparkJobs
from tests.simulation.stack.special_topics import Answered, Chunked, Leaders, Passing, Terminated, Unsubscribed

FAULTS_S: Final = 40.0
SETTLE_S: Final = 180.0
ANSWERED_S: Final = 30.0

# How many of the lives have clients that wait for an answer as long as their connection is there, and how long that is.
PATIENT_SHARE: Final = 0.3
FOR_EVER_S: Final = 10_000.0

# How many of the subscriptions have consumers that hold what they get until all was received.
HOLDING_SHARE: Final = 0.15

# How many of the lives have clients that tell brokers of parts of batches where these do not keep them.
TELLING_SHARE: Final = 0.3

# Virtual seconds after which a life that goes on breaks a rule; most have some hundred.
LIFE_MAX_S: Final = 3_600.0
# Applications end within this after the faults.
ENDED_S: Final = 600.0

# How many of the lives go on with the replacement of all bookies.
REPLACED_SHARE: Final = 0.25

# How many of the lives keep what all subscriptions have acknowledged: it can be read again at the end.
KEPT_SHARE: Final = 0.75

# Ledgers that are consumed go when others are begun or closed, and with the housekeeping of brokers, each 30 s. The
# open one stays, and the one in which a cursor stands.
LEDGERS_LEFT_MAX: Final = 2

# How many of the consumers leave now and then and come again, and how many ask for their place after the faults.
LEAVING_SHARE: Final = 0.25

# A timer may be early by what clocks differ, and by a tick of the broker.
EARLY_MS_MAX: Final = 12_000

# How many of the lives have jobs of Spark.
SPARK_SHARE: Final = 0.5

# Reports of damage that have no cause any more are called mended every 300 s.
MENDED_S: Final = 700.0
TENANT: Final = "persistent://public/default"

TYPES: Final = {
    "exclusive": wire.CommandSubscribe.Exclusive,
    "shared": wire.CommandSubscribe.Shared,
    "failover": wire.CommandSubscribe.Failover,
    "key_shared": wire.CommandSubscribe.Key_Shared,
}


OTHERS: Final[Mapping[str, type[Keyed | Deleted | Orders | Chunked | Leaders | Terminated]]] = {
    "keyed": Keyed,
    "deleted": Deleted,
    "orders": Orders,
    "chunked": Chunked,
    "leaders": Leaders,
    "terminated": Terminated,
}

# Drawn beside those.
MORE: Final[Mapping[str, type[Partitioned | Secret | Aged | Resent | Answered | Unsubscribed | Passing]]] = {
    "answered": Answered,
    "unsubscribed": Unsubscribed,
    "passing": Passing,
    "partitioned": Partitioned,
    "secret": Secret,
    "aged": Aged,
    "resent": Resent,
}

# Those that read what was sent before they had a subscription.
LATE: Final = frozenset({"keyed", "orders"})

# How many are told: the first is what counts.
PROBLEMS_MAX: Final = 5


Come = Callable[[], Coroutine[Any, Any, Consumer]]


class Broken(AssertionError):
    """A rule did not hold."""


@dataclass
class Subscription:
    topic: str
    name: str
    kind: str
    consumers: list[Consumer] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    first_of: dict[str, int] = field(default_factory=dict)
    """Producer → the number of its last message that was delivered for the first time."""
    sought: "_Sought | None" = None
    """The last seek that is done, as its broker said."""
    seeks: list["_Sought"] = field(default_factory=list)
    """Those that are under way."""


@dataclass
class _Sought:
    """A seek to the begin, and what came after it."""

    consumer: Consumer
    session: int
    """In which it was asked for: what comes in it does not count."""
    before: frozenset[str]
    """What had been acknowledged to producers."""
    received: set[str] = field(default_factory=set)


class Life:
    def __init__(self, seed: int, loop: NetworkLoop, without: Collection[str] = ()) -> None:
        """*without*: applications, and numbers of events, that are left out."""
        self.seed = seed
        self._without = frozenset(without)
        self.loop = loop
        rng = self.rng = random.Random(seed)
        self.story: list[str] = []
        self.counts: Counter[str] = Counter()
        self.cluster = SimulatedCluster(loop, rng, session_s=rng.choice((2.0, 6.0, 15.0)))
        copies = rng.choice((2, 2, 3))
        bookies = rng.randint(copies + 1, 5)
        recovery = AutoRecoveryConfig()
        checks_integrity = rng.random() < 0.3
        for _ in range(bookies):
            self.cluster.add_bookie(
                replace(
                    BOOKIE,
                    journal_file_mib_max=rng.choice((1, 64)),
                    flush_interval_ms=rng.choice((200, 2_000, 10_000)),
                    log_bytes_max=rng.choice((20_000, 1 << 20)),
                    write_cache_mib=rng.choice((1, 8)),
                    data_integrity=checks_integrity,
                ),
                recovery,
            )
        self.keeps = rng.random() < KEPT_SHARE
        """What was acknowledged by all subscriptions is kept."""
        config = BrokerConfig(
            ensemble_size=rng.randint(copies, bookies),
            write_quorum=copies,
            ack_quorum=rng.randint(2, copies),
            max_entries_per_ledger=rng.choice((5, 30, 50_000)),
            min_rollover_minutes=0,
            cursor_ledger_entries=rng.choice((3, 50_000)),
            retention_minutes=-1 if self.keeps else 0,
            retention_mbytes=-1 if self.keeps else 0,
            mark_delete_rate=rng.choice((1.0, 100.0)),
            batch_index_acks=rng.random() < 0.5,
            cache_mbytes=rng.choice((0, 64)),
            expiry_check_minutes=1,
        )
        self.deduplicates = rng.random() < 0.3
        self.operation_s = rng.choice((2.0, 30.0, 30.0))
        """How long clients wait for the answer to a request. What is answered later, they ask again."""
        if random.Random(f"{seed}/patience").random() < PATIENT_SHARE:
            self.operation_s = FOR_EVER_S
        config = replace(config, deduplication=self.deduplicates)
        self.config = config
        for _ in range(rng.randint(1, 3)):
            self.cluster.add_broker(config)
        numbers = frozenset(int(part) for part in self._without if part.isdecimal())
        self.faults = Faults(self.cluster, rng, self.note, leave_out=numbers)
        self.operators = Operators(self.cluster, config.cluster_name, self.note)
        self.faults.events += [self.seek, self.begin_anew, self.change_policies]
        self._tells_parts = self.keeps_parts or random.Random(f"{seed}/parts").random() < TELLING_SHARE
        self._has_healed = False
        self._healed_s = math.inf
        self.sent: dict[str, dict[str, tuple[int, int]]] = {}
        """Topic → message → where it is said to be."""
        self.due_ms: dict[str, int] = {}
        """Message → when it may be delivered to a Shared or Key_Shared subscription; none: at once."""
        self.unsure: Counter[str] = Counter()
        self.held: list[Received] = []
        """What is acknowledged when all was received."""
        self.is_received = False
        self.subscriptions: list[Subscription] = []
        self.producers: list[tuple[str, Producer]] = []
        self.clients: list[Process] = []
        self._pulsar_clients: list[PulsarClient] = []
        self._leaving: list[asyncio.Task[None]] = []
        self.spark: SparkJobs | None = None
        self._applications: list[str] = []
        self.problems: list[str] = []
        self.ledgers = ClosedLedgers(self.cluster, self.problem)
        self.errors = OwnErrors(self.problem)
        self._circles = Circles(self.cluster)
        self._inspector = Process("inspector")

    @classmethod
    def of(cls, seed: int, without: Collection[str] = ()) -> "Life":
        loop = NetworkLoop()
        asyncio.set_event_loop(loop)
        return cls(seed, loop, without)

    @property
    def parts(self) -> list[str]:
        """What could have been left out: applications and events that were there."""
        numbers = map(str, range(1, self.faults.count + 1))
        return [part for part in (*self._applications, *numbers) if part not in self._without]

    def live(self) -> None:
        """To the end. Raises Broken where a rule did not hold. The process has to end afterwards: tasks of machines
        that were killed are left as they are."""
        with drawn_from(self.seed):
            self._live()

    def _live(self) -> None:
        try:
            self.loop.run_until_complete(self._run_to_the_end())
        except BaseException as error:
            self.note(f"{type(error).__name__}: {error}")
            raise

    def digest(self) -> str:
        """The same for each run of a seed."""
        return f"{zlib.crc32(repr((self.loop.time(), self.story, sorted(self.counts.items()))).encode()):08x}"

    def problem(self, text: str) -> None:
        """A rule did not hold."""
        if len(self.problems) < PROBLEMS_MAX:
            self.note(text.partition("\n")[0])
            self.problems.append(text)

    def note(self, text: str) -> None:
        self.story.append(f"{self.loop.time():8.3f}  {text}")

    # -------------------------------------------------------------------------------- the life

    async def _run_to_the_end(self) -> None:
        life = self.run()
        running = asyncio.ensure_future(life)
        if not (await asyncio.wait([running], timeout=LIFE_MAX_S))[0]:
            raise Broken(f"the life does not end, and waits in {' < '.join(reversed(_waiting_in(life)))}")
        await running

    async def run(self) -> None:
        self.loop.set_exception_handler(self.errors.on_loop)
        logging.getLogger().addHandler(self.errors)
        await self.cluster.start()
        self.cluster.network.add(self._inspector)
        self.note(
            f"{len(self.cluster.bookies)} bookies, {len(self.cluster.brokers)} brokers, {self.config.ensemble_size}/"
            f"{self.config.write_quorum}/{self.config.ack_quorum}, sessions of {self.cluster.server.session_s} s"
        )
        running = {
            asyncio.ensure_future(application()): name
            for name, application in self._drawn_applications().items()
            if name not in self._without
        }
        await self.faults.happen(FAULTS_S)
        self._has_healed = True
        self.operators.take_back()
        await self.faults.heal()
        self._healed_s = self.loop.time()
        for subscription in self.subscriptions:
            for consumer in subscription.consumers:
                if self.rng.random() < LEAVING_SHARE:
                    consumer.begin_anew()  # what it holds now has to come again, though nobody leaves any more
        if running:
            ended, endless = await asyncio.wait(running, timeout=ENDED_S)
            for task in ended:
                task.result()
            if endless:
                names = sorted(running[task] for task in endless)
                raise Broken(f"{names} do not end after the faults; unanswered: {self._unanswered_now()}")
        await self._settle()
        if len(self.cluster.bookies) > self.config.ensemble_size and self.rng.random() < REPLACED_SHARE:
            await self._replace_all()
            await self._settle()
        await self._check()

    # -------------------------------------------------------------------------------- applications

    def _drawn_applications(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        drawn: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            f"t{number}": partial(self._application, number) for number in range(self.rng.randint(1, 3))
        }
        if self.rng.random() < SPARK_SHARE and self.keeps:
            drawn["spark"] = self._read_by_spark
        others = sorted(OTHERS if self.keeps else OTHERS.keys() - LATE)
        for name in self.rng.sample(others, self.rng.choice((0, 1, 2, 3))):
            drawn[name] = OTHERS[name](self, f"{TENANT}/{name}", random.Random(f"{self.seed}/{name}")).run
        more = random.Random(f"{self.seed}/more")
        for name in more.sample(sorted(MORE), more.choice((0, 1, 2, 3))):
            drawn[name] = MORE[name](self, f"{TENANT}/{name}", random.Random(f"{self.seed}/{name}")).run
        self._applications = list(drawn)
        return drawn

    async def _read_by_spark(self) -> None:
        topic = f"{TENANT}/t0"
        sent = self.sent.setdefault(topic, {})
        self.spark = SparkJobs(self, topic, sent, random.Random(f"{self.seed}/spark"))
        await self.spark.run()

    def client(self, name: str) -> tuple[Process, PulsarClient]:
        """A process of an application, and the client that it uses there."""
        process = Process(name)
        self.clients.append(process)
        self.cluster.network.add(process)
        return process, self._client(self.rng)

    def _client(self, rng: random.Random) -> PulsarClient:
        urls = [machine.url for machine in self.cluster.brokers]
        client = PulsarClient(urls, rng, self.operation_s, on_unanswered=self._unanswered)
        self._pulsar_clients.append(client)
        return client

    def _unanswered_now(self) -> list[str]:
        """Some requests that have waited for ANSWERED_S."""
        since_s = self.loop.time() - ANSWERED_S
        return [what for client in self._pulsar_clients for what in client.unanswered(since_s)][:3]

    def _unanswered(self, request: str, began_s: float) -> None:
        """Rule 8."""
        if self.operation_s >= ANSWERED_S and began_s > self._healed_s + ANSWERED_S:
            self.problem(f"a request was not answered in {self.operation_s} s: {request}")

    async def _application(self, number: int) -> None:
        topic = f"{TENANT}/t{number}"
        self.sent.setdefault(topic, {})
        process, _ = self.client(f"client-{number}")
        await process.run(self._produce_and_consume(topic, number))

    async def _produce_and_consume(self, topic: str, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        for at in range(rng.randint(1, 2)):
            kind = rng.choice(sorted(TYPES))
            subscription = Subscription(topic, f"s{at}", kind)
            self.subscriptions.append(subscription)
            many = 1 if kind == "exclusive" else rng.randint(1, 3)
            for place in range(many):
                worker = _Worker(self, subscription, random.Random(f"{self.seed}/{number}/{at}/{place}"))
                come = partial(
                    self._client(rng).subscribe, topic, subscription.name, TYPES[kind], on_message=worker.take,
                    name=f"c{at}-{place}", queue=rng.choice((1, 10, 100)), index_acks=self._tells_parts,
                )  # fmt: skip
                subscription.consumers.append(await come())
                leaving = random.Random(f"{self.seed}/{number}/{at}/{place}/leaves")
                if leaving.random() < LEAVING_SHARE:
                    self._leaving.append(asyncio.ensure_future(self._come_and_go(subscription, place, come, leaving)))
        await asyncio.gather(*(self._produce(topic, f"p{number}-{place}", rng) for place in range(rng.randint(1, 2))))
        await asyncio.gather(*self._leaving)

    async def _come_and_go(self, subscription: Subscription, place: int, come: Come, rng: random.Random) -> None:
        """One consumer leaves now and then, with what it has not acknowledged, and comes again; or it asks for its
        place once more while it has it."""
        while self.is_faulty:
            await asyncio.sleep(rng.expovariate(1 / 8.0))
            if rng.random() < 0.5:
                subscription.consumers[place].begin_anew()
                continue
            await subscription.consumers[place].close()
            await asyncio.sleep(rng.choice((0.0, 0.1, 2.0)))
            subscription.consumers[place] = await come()

    async def _produce(self, topic: str, name: str, rng: random.Random) -> None:
        producer = await self._client(rng).produce(topic, name)
        self.producers.append((topic, producer))
        count = 0
        pause_s = rng.choice((0.1, 0.3, 1.0))
        delayed_share = rng.choice((0.0, 0.0, 0.1, 0.5))
        while self.loop.time() < FAULTS_S + 5:
            payloads = []
            for _ in range(rng.choice((1, 1, 1, 5))):
                payloads.append(f"{name}:{count}")
                count += 1
            fields = {}
            if len(payloads) == 1 and rng.random() < delayed_share:
                due_s = self.loop.time() + rng.choice((0.5, 3.0, 15.0))
                fields["deliver_at_time"] = self.due_ms[payloads[0]] = WALL_MS + int(due_s * 1000)
            answer = producer.send([text.encode() for text in payloads], key=f"k{rng.randrange(5)}", **fields)
            answer.add_done_callback(partial(self._answered, topic, tuple(payloads)))
            await asyncio.sleep(rng.expovariate(1 / pause_s))

    def _answered(self, topic: str, payloads: tuple[str, ...], answer: "asyncio.Future[tuple[int, int]]") -> None:
        error = answer.exception()
        if error is not None:
            self.unsure.update(payloads)
            return
        place = answer.result()
        self.counts["acknowledged"] += len(payloads)
        for payload in payloads:
            self.sent[topic][payload] = place

    # -------------------------------------------------------------------------------- the end

    @property
    def is_faulty(self) -> bool:
        return not self._has_healed

    @property
    def keeps_parts(self) -> bool:
        return self.config.batch_index_acks

    def seek(self) -> None:
        alone = [each for each in self.subscriptions if each.kind == "exclusive" and each.consumers]
        if alone:
            subscription = self.rng.choice(alone)
            consumer = subscription.consumers[0]
            self.note(f"{subscription.name} of {subscription.topic} seeks its begin")
            consumer.process.run(self._seek(subscription, consumer))

    async def _seek(self, subscription: Subscription, consumer: Consumer) -> None:
        sought = _Sought(consumer, consumer.session, frozenset(self.sent[subscription.topic]))
        subscription.seeks.append(sought)
        if await consumer.seek_begin():
            subscription.sought = sought
        subscription.seeks.remove(sought)

    def begin_anew(self) -> None:
        consumers = [consumer for subscription in self.subscriptions for consumer in subscription.consumers]
        clients = [*consumers, *(producer for _, producer in self.producers)]
        attached = [client for client in clients if client.connection is not None]
        if attached:
            client = self.rng.choice(attached)
            self.note(f"{client.name} of {client.topic} asks for its place once more")
            client.begin_anew()

    def change_policies(self) -> None:
        self.operators.change(self.rng)

    async def _replace_all(self) -> None:
        """All bookies are replaced while nobody sends; then a message comes, and other owners."""
        for machine in self.cluster.bookies:
            await self.faults.replace(machine)
        for topic, producer in self.producers:
            payload = f"{producer.name}:{10_000}"
            answer = producer.send([payload.encode()])
            answer.add_done_callback(partial(self._answered, topic, (payload,)))
        await asyncio.sleep(20.0)
        for broker in self.cluster.brokers:
            await broker.stop()
            await broker.start()
        self.note("all brokers were restarted")

    async def _settle(self) -> None:
        deadline_s = self.loop.time() + SETTLE_S
        while problem := self._unsettled():
            if self.loop.time() > deadline_s:
                raise Broken(f"does not settle: {problem}")
            await asyncio.sleep(1.0)
        self.note("everything was received")
        self.is_received = True
        for received in self.held:
            received.consumer.process.call(received.consumer.acknowledge, received)
        self.held.clear()

    def _unsettled(self) -> str:
        for _, producer in self.producers:
            if producer.waiting:
                return f"producer {producer.name} has {producer.waiting} messages that wait; {producer.refusals[-3:]}"
        for subscription in self.subscriptions:
            missing = [text for text in self.sent[subscription.topic] if text not in subscription.received]
            if missing:
                return (
                    f"{subscription.kind} {subscription.name} of {subscription.topic} did not get {len(missing)} of "
                    f"{len(self.sent[subscription.topic])}: {missing[:5]} at "
                    f"{[self.sent[subscription.topic][text] for text in missing[:5]]}; "
                    f"{[(c.name, c.connection is not None, c.refusals[-2:]) for c in subscription.consumers]}"
                )
            sought = subscription.sought if self.keeps else None
            again = [] if sought is None else sorted(sought.before - sought.received)
            if again:
                return f"{subscription.name} of {subscription.topic} did not get {again[:5]} again after its seek"
        return ""

    async def _check(self) -> None:
        for topic, sent in self.sent.items():
            by_producer: dict[str, list[tuple[int, tuple[int, int]]]] = {}
            for payload, place in sent.items():
                name, _, number = payload.rpartition(":")
                by_producer.setdefault(name, []).append((int(number), place))
            for name, places in by_producer.items():
                # Where it is a duplicate, nobody is told where it is: (-1, -1).
                ordered = [place for _, place in sorted(places) if place[0] >= 0]
                if ordered != sorted(ordered):
                    raise Broken(f"{topic}: the positions of {name} do not go up")
            if self.keeps:
                await self._read_again(topic, sent)
        if self.spark is not None:
            await self.spark.finish()
        deadline_s = self.loop.time() + MENDED_S
        while problem := await self._left():
            if self.loop.time() > deadline_s:
                raise Broken(problem)
            await asyncio.sleep(2.0)
        self.counts["calls"], self.counts["requests"] = round(self._circles.calls), round(self._circles.requests)
        strangers = await unnamed(self.cluster)
        if strangers and not self._may_leave_ledgers:
            self.problem(f"{len(strangers)} ledgers that nobody names: {strangers[:3]}")
        if self.problems:
            raise Broken("; ".join(self.problems))

    @property
    def _may_leave_ledgers(self) -> bool:
        """Whether a broker ended, or did not hear an answer, between a ledger and what names it."""
        kills = sum(len(machine.processes) > 1 for machine in self.cluster.brokers)
        return kills > 0 or self.cluster.server.unheard > 0

    async def _left(self) -> str:
        """What is in use at the end although nothing is under way; empty if there is nothing."""
        for machine in self.cluster.brokers:
            used = in_use(machine) or undelivered(machine, self.sent) or self._permits(machine)
            if used:
                return used
        now_s = self.loop.time()
        if now_s > self._healed_s + ANSWERED_S:
            waiting = self._unanswered_now()
            if waiting:
                return f"requests are not answered: {waiting}"
        return (
            await unrepaired(self.cluster)
            or await losses(self.cluster)
            or await self._consumed_ledgers()
            or await registered(self.cluster)
            or await outdated(self.cluster)
            or await lacking(self.cluster, self._inspector)
            or await self._circles.look()
        )

    def _permits(self, machine: BrokerMachine) -> str:
        consumers = [consumer for subscription in self.subscriptions for consumer in subscription.consumers]
        return lost_permits(machine, consumers, are_exact=not self._tells_parts)

    async def _consumed_ledgers(self) -> str:
        """Ledgers that nobody needs and that stay; empty if there are none."""
        if self.keeps:
            return ""
        for topic in self.sent:
            record = await stored_record(self.cluster.server.root, TopicName.parse(topic).managed_ledger_name)
            ledgers = [] if record is None else [info.ledgerId for info in record.ledgerInfo]
            if len(ledgers) > LEDGERS_LEFT_MAX:
                return f"{topic} still has the ledgers {ledgers}, and all of it was acknowledged"
        return ""

    async def _read_again(self, topic: str, sent: dict[str, tuple[int, int]]) -> None:
        """Rules 1 and 6, with a reader."""
        there: dict[str, list[tuple[int, int]]] = {}

        def arrived(received: Received) -> None:
            place = received.id.ledger_id, received.id.entry_id
            there.setdefault(received.payload.decode(), []).append(place)
            received.consumer.acknowledge(received)

        process, client = self.client("reader")
        make = partial(Consumer, client, topic, "reader", TYPES["exclusive"], on_message=arrived, name="reader")
        reader = process.call(partial(make, queue=1000, durable=False))
        process.call(reader.start)
        try:
            async with asyncio.timeout(SETTLE_S):
                await process.run(reader.ready.wait())
        except TimeoutError:
            raise Broken(f"{topic}: a reader is not subscribed: {reader.refusals[-3:]}") from None
        deadline_s = self.loop.time() + SETTLE_S
        while missing := [text for text in sent if text not in there]:
            if self.loop.time() > deadline_s:
                raise Broken(f"{topic}: a reader misses {missing[:5]}, at {[sent[text] for text in missing[:5]]}")
            await asyncio.sleep(0.5)
        await process.run(reader.close())
        for text, place in sent.items():
            if place[0] >= 0 and place not in there[text]:
                raise Broken(f"{topic}: {text} was acknowledged at {place}, and is at {there[text]}")
        twice = [text for text, places in there.items() if len(set(places)) > 1]
        if self.deduplicates and twice:
            raise Broken(f"{topic}: {twice[0]} is there twice, at {there[twice[0]]}")


class _Worker:
    """An application that receives."""

    def __init__(self, life: Life, subscription: Subscription, rng: random.Random) -> None:
        self._life = life
        self._subscription = subscription
        self._rng = rng
        self._habit = rng.choice(("at once", "late", "some come again"))
        # Who holds all that it gets until it has all: nothing but the end of a limit lets it go on.
        holding = random.Random(f"{life.seed}/{subscription.topic}/{subscription.name}")
        if holding.random() < HOLDING_SHARE and subscription.kind != "key_shared":  # where keys wait for acks
            self._habit = "hold"
        self._ordered = subscription.kind in ("exclusive", "failover")
        self._cumulative = self._ordered and rng.random() < 0.4
        self._session: tuple[Consumer, int] | None = None
        self._came: set[tuple[int, int, int]] = set()
        """What came in this session."""
        self._given_back: set[tuple[int, int]] = set()
        """Entries of which something was given back in it: they may come again. To an exclusive consumer all may."""
        self._last = (-1, -1, -1)

    def _note_order(self, received: Received) -> None:
        """Rule 10."""
        if self._subscription.kind == "failover":  # who is active no more and again gets what it had
            return
        if (received.consumer, received.session) != self._session:
            self._session, self._last = (received.consumer, received.session), (-1, -1, -1)
            self._came.clear()
            self._given_back.clear()
        place = received.id[:3]
        what = f"{self._subscription.kind} {self._subscription.topic}: {received.payload.decode()} at {place}"
        is_alone = self._subscription.kind == "exclusive"
        may_come_again = bool(self._given_back) if is_alone else place[:2] in self._given_back
        if place in self._came and not may_come_again:
            self._life.problem(f"{what} comes twice in a session, and was not given back")
        if is_alone and place < self._last and not may_come_again:
            self._life.problem(f"{what} comes after {self._last} in one session")
        self._came.add(place)
        self._last = max(self._last, place)

    def _give_back(self, received: Received) -> None:
        self._given_back.add(received.id[:2])
        received.consumer.redeliver([received])

    def take(self, received: Received) -> None:
        text = received.payload.decode()
        subscription, life = self._subscription, self._life
        life.counts["received"] += 1
        is_first = text not in subscription.received
        early_ms = life.due_ms.get(text, 0) - WALL_MS - int(life.loop.time() * 1000)
        if not self._ordered and early_ms > EARLY_MS_MAX:
            life.problem(f"{subscription.kind} {subscription.topic}: {text} comes {early_ms} ms before its time")
        subscription.received[text] += 1
        self._note_order(received)
        for sought in filter(None, (*subscription.seeks, subscription.sought)):
            if received.consumer is not sought.consumer or received.session > sought.session:
                sought.received.add(text)
        name, _, number = text.rpartition(":")
        if is_first and self._ordered:
            last = subscription.first_of.get(name, -1)
            if int(number) < last and text not in life.unsure:
                life.problem(f"{subscription.kind} {subscription.topic}: {text} comes after {name}:{last}")
            subscription.first_of[name] = max(last, int(number))
        if self._habit == "hold" and not life.is_received:
            life.held.append(received)
        elif life.is_faulty and self._habit == "some come again" and self._rng.random() < 0.1 and not self._cumulative:
            self._give_back(received)
        elif self._habit == "late" and not self._cumulative:
            life.loop.call_later(self._rng.choice((0.0, 0.1, 3.0)), lambda: received.consumer.acknowledge(received))
        else:
            received.consumer.acknowledge(received, cumulative=self._cumulative)


def _waiting_in(work: Any) -> list[str]:
    """The functions in which a coroutine waits, with their lines; the outermost first."""
    functions = []
    while (frame := getattr(work, "cr_frame", None)) is not None:
        functions.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        work = work.cr_await
    return functions
