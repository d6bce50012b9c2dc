"""What a life checks (`tests.simulation.stack.life`): each check sees the fault that it is there for. Without lives."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command
from magnetar.testing.simulated.cluster import BOOKIE_PORT, ROOT, BrokerMachine, SimulatedCluster
from magnetar.testing.simulated.loop import Process, VirtualClock, bury
from magnetar.testing.simulated.network import NetworkLoop
from magnetar.testing.simulated.under_test import drawn_from
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import (
    LedgerMetadata,
    Segment,
    decode,
    encode,
)
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import ledger_path as ledger_metadata_path
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.records.paths import cursor_path, ledger_path
from managed_ledger.records.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from tests.simulation.stack import life as lives
from tests.simulation.stack.checks import in_use, lost_permits, undelivered
from tests.simulation.stack.life import ANSWERED_S, Life, Subscription
from tests.simulation.stack.pulsar_client import Consumer, MessageId, PulsarClient, Received
from tests.simulation.stack.remains import CALLS_MAX, REQUESTS_MAX, Circles, lacking, registered, unnamed

TOPIC: Final = "persistent://public/default/t0"


@contextlib.contextmanager
def bookies(count: int) -> Iterator[SimulatedCluster]:
    """A cluster without brokers, which has nothing to do."""
    with drawn_from(1):
        loop = NetworkLoop()
        cluster = SimulatedCluster(loop, random.Random(1))
        for _ in range(count):
            cluster.add_bookie()
        loop.run_until_complete(cluster.start())
        try:
            yield cluster
        finally:
            for machine in cluster.machines:
                loop.run_until_complete(machine.stop())
            loop.close()


@pytest.fixture
def life() -> Iterator[Life]:
    """One that has not begun, and whose faults are over."""
    life = Life.of(5)
    life._has_healed = True
    yield life
    life.loop.close()


# ------------------------------------------------------------------------------------------------ what is left over

LEFT: Final = ("in_use", "undelivered", "lost_permits", "unrepaired", "losses", "registered", "outdated", "lacking")


@pytest.mark.parametrize("broken", [*LEFT, "consumed ledgers", "circles", "nothing"])
def test_a_life_asks_each_check_at_its_end(life: Life, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(name: str) -> str:
        return f"{name} is broken" if name == broken else ""

    def check(name: str) -> Callable[..., str | Awaitable[str]]:
        async def later(*_: Any) -> str:
            return told(name)

        return later if name in LEFT[3:] else lambda *_, **options: told(name)

    async def look() -> str:
        return told("circles")

    async def consumed() -> str:
        return told("consumed ledgers")

    for name in LEFT:
        monkeypatch.setattr(lives, name, check(name))
    monkeypatch.setattr(life._circles, "look", look)
    monkeypatch.setattr(life, "_consumed_ledgers", consumed)
    assert life.loop.run_until_complete(life._left()) == ("" if broken == "nothing" else f"{broken} is broken")


def _machine(**of_broker: Any) -> BrokerMachine:
    return cast(BrokerMachine, SimpleNamespace(broker=SimpleNamespace(**of_broker)))


def test_what_is_taken_of_a_budget_is_seen() -> None:
    budgets = {name: SimpleNamespace(used_bytes=0, waiting_count=0) for name in ("publishes", "reads", "set_aside")}
    assert not in_use(_machine(**budgets))
    for name, budget in budgets.items():
        budget.used_bytes = 1
        assert f"1 bytes of the budget of {name.replace('_', ' ')}" in in_use(_machine(**budgets))
        budget.used_bytes, budget.waiting_count = 0, 1
        assert f"1 wait for the budget of {name.replace('_', ' ')}" in in_use(_machine(**budgets))
        budget.waiting_count = 0


def test_what_is_not_acknowledged_and_permits_that_are_lost_are_seen() -> None:
    consumer = SimpleNamespace(name="c0", consumer_id=1, permits=10)
    subscription = SimpleNamespace(name="s0", backlog=0, unacked_messages=0, consumers=[consumer])
    machine = _machine(topics={TOPIC: SimpleNamespace(subscriptions={"s0": subscription})})
    client: Any = SimpleNamespace(topic=TOPIC, subscription="s0", name="c0", permits=10)

    def permits(*, are_exact: bool = True) -> str:
        return lost_permits(machine, [client], are_exact=are_exact)

    assert not undelivered(machine, [TOPIC]) + permits()
    client.permits = 11
    assert "may be sent 10 messages, and its client has asked for 11" in permits()
    client.permits = 9
    assert "may be sent 10" in permits()
    assert not permits(are_exact=False)
    subscription.unacked_messages = 2
    assert "has 2 at consumers" in undelivered(machine, [TOPIC])
    subscription.backlog = 3
    assert "has a backlog of 3" in undelivered(machine, [TOPIC])
    assert not undelivered(machine, []), "only the topics that are asked for"


# ------------------------------------------------------------------------------------------------ an idle cluster


@pytest.mark.parametrize("what", ["calls", "requests", "nothing"])
def test_what_goes_in_a_circle_is_seen(what: str) -> None:
    with bookies(3) as cluster:
        process, circles = Process("client"), Circles(cluster)
        cluster.network.add(process)

        async def circle() -> None:
            store = cluster.server.session(VirtualClock(cluster.loop))
            while what != "nothing":
                await asyncio.sleep(0.002 if what == "calls" else 0.02)
                if what == "requests":
                    await store.exists("/")

        async def look() -> str:
            going = process.run(circle())
            try:
                return await circles.look()
            finally:
                going.cancel()

        told = cluster.loop.run_until_complete(look())
        assert told.startswith("an idle machine makes") == (what != "nothing"), told
        assert (circles.calls > CALLS_MAX, circles.requests > REQUESTS_MAX) == (what == "calls", what == "requests")
        process.kill()


def test_a_bookie_in_the_wrong_list_of_the_register_is_seen() -> None:
    with bookies(2) as cluster:
        run, root = cluster.loop.run_until_complete, cluster.server.root
        writable = f"{ROOT}/available/bookie-1:{BOOKIE_PORT}"
        read_only = f"{ROOT}/available/readonly/bookie-1:{BOOKIE_PORT}"
        assert not run(registered(cluster))
        run(root.put(read_only, b""))
        assert "bookie-1 is read-only for" in run(registered(cluster)), "it stands in both"
        run(root.delete(writable))
        assert "bookie-1 is read-only for" in run(registered(cluster)), "it is writable"
        run(root.delete(read_only))
        assert "bookie-1 is read-only for" in run(registered(cluster)), "it stands in none"


def test_an_entry_that_lacks_copies_is_seen() -> None:
    with bookies(3) as cluster:
        loop, root = cluster.loop, cluster.server.root
        process = Process("client")
        cluster.network.add(process)

        async def write() -> int:
            store = cluster.server.session(VirtualClock(loop))
            bookkeeper = BookKeeper(store, VirtualClock(loop), ClientConfig(), root=ROOT)
            await bookkeeper.open()
            ledger = await bookkeeper.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
            for number in range(3):
                await ledger.add(b"%d" % number)
            await ledger.close()
            await bookkeeper.close()
            await store.close()
            return ledger.ledger_id

        async def in_process() -> int:
            return await process.run(write())

        path = ledger_metadata_path(ROOT, loop.run_until_complete(in_process()))
        stored = loop.run_until_complete(root.get(path))
        assert stored is not None
        assert not loop.run_until_complete(lacking(cluster, process))
        one_more = replace(decode(stored.value), last_entry_id=3)
        loop.run_until_complete(root.put(path, encode(one_more)))
        assert loop.run_until_complete(lacking(cluster, process)).startswith("entry 3 of ledger 0 has 0 copies")
        process.kill()


@pytest.mark.parametrize("cursor", ["", "s0"])
def test_a_ledger_that_nobody_names_is_seen(cursor: str) -> None:
    with bookies(0) as cluster:
        run, root = cluster.loop.run_until_complete, cluster.server.root
        topic = TopicName.parse(TOPIC).managed_ledger_name
        fields = (("pulsar/cursor", cursor.encode()), ("pulsar/managed-ledger", topic.encode()))
        ensemble = (Segment(0, ("bookie-1:3181",)),)
        made = [
            LedgerMetadata(
                ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C, segments=ensemble,
                custom_metadata=custom,
            )
            for custom in (fields[not cursor :], ())
        ]  # fmt: skip
        (ledger_id, _), _ = [run(LedgerStore(root, ROOT).create(metadata)) for metadata in made]
        (stranger,) = run(unnamed(cluster))
        assert stranger == f"ledger {ledger_id} of {cursor or 'its own'} in {topic}, which names []"
        record = ManagedLedgerInfo()
        record.ledgerInfo.add(ledgerId=ledger_id)
        of_cursor = ManagedCursorInfo(cursorsLedgerId=ledger_id, markDeleteLedgerId=0, markDeleteEntryId=0)
        run(root.put(ledger_path(topic), b"" if cursor else record.SerializeToString()))
        if cursor:
            run(root.put(cursor_path(topic, cursor), of_cursor.SerializeToString()))
        assert run(unnamed(cluster)) == []


# ------------------------------------------------------------------------------------------------ requests


def test_a_request_whose_connection_is_there_and_that_is_not_answered_is_seen(life: Life) -> None:
    life.cluster.brokers.clear()
    life._healed_s = 0.0
    unanswered: Any = SimpleNamespace(unanswered=lambda since_s: ["SUBSCRIBE"] if since_s > 100.0 else [])
    life._pulsar_clients.append(unanswered)
    life.loop.now_s = 100.0 + ANSWERED_S
    assert life._unanswered_now() == []
    life.loop.now_s += 1.0
    assert life.loop.run_until_complete(life._left()) == "requests are not answered: ['SUBSCRIBE']"


@pytest.mark.parametrize(
    ("began_s", "operation_s", "counts"), [(71.0, 30.0, True), (69.0, 30.0, False), (71.0, 2.0, False)]
)
def test_a_request_that_a_client_gives_up_counts_when_the_faults_are_over(
    life: Life, began_s: float, operation_s: float, *, counts: bool
) -> None:
    life._healed_s, life.operation_s = 40.0, operation_s
    life._unanswered("SUBSCRIBE", began_s)
    assert bool(life.problems) == counts


def test_a_client_knows_which_of_its_requests_wait() -> None:
    """At a server that greets, and answers nothing else."""
    with bookies(0) as cluster:
        loop = cluster.loop
        process, server = Process("client"), Process("broker-1")
        cluster.network.add(process)
        cluster.network.add(server)
        given_up: list[str] = []

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            writer.write(command(wire.BaseCommand.CONNECTED, server_version="b"))

        async def ask() -> list[list[str]]:
            client = PulsarClient(
                ["pulsar://broker-1:6650"], random.Random(1), 50.0, on_unanswered=lambda what, _: given_up.append(what)
            )
            asking = asyncio.ensure_future(client.locate(TOPIC))
            await asyncio.sleep(10.0)
            seen = [client.unanswered(since_s) for since_s in (0.0, loop.time())]
            with pytest.raises(TimeoutError):
                await asking
            seen.append(client.unanswered(loop.time()))
            return seen

        async def run() -> list[list[str]]:
            await server.run(asyncio.start_server(greet, "broker-1", 6650))
            return await process.run(ask())

        before, waiting, after = loop.run_until_complete(run())
        assert (before, after) == ([], [])
        assert [what.partition(" ")[0] for what in (*waiting, *given_up)] == ["LOOKUP"] * 2
        process.kill()
        server.kill()
        loop.run_until_complete(bury([process, server]))


# ------------------------------------------------------------------------------------------------ order, and seeks


class Session:
    """One consumer of a subscription, to which messages are brought by hand."""

    def __init__(self, life: Life, kind: str) -> None:
        self.life = life
        self.subscription = Subscription(TOPIC, "s0", kind)
        life.subscriptions.append(self.subscription)
        life.sent[TOPIC] = {}
        self.worker = lives._Worker(life, self.subscription, random.Random(1))
        self.worker._habit = "at once"
        acknowledging: Any = SimpleNamespace(
            acknowledge=lambda *_, **options: True, redeliver=lambda _: None, name="c0", connection=None, refusals=[]
        )
        self.consumer: Consumer = acknowledging
        self.number = 1

    def bring(self, *entries: int) -> list[str]:
        """What the life says to that, in short."""
        for entry_id in entries:
            self.worker.take(self._message(entry_id))
        problems = [" ".join(text.split()[-8:]) for text in self.life.problems]
        self.life.problems.clear()
        return problems

    def give_back(self, entry_id: int) -> None:
        self.worker._give_back(self._message(entry_id))

    def _message(self, entry_id: int) -> Received:
        place = MessageId(1, entry_id, -1, 1)
        return Received(place, b"p:%d" % entry_id, 0, self.consumer, "", None, self.number)


def test_what_comes_twice_in_a_session_is_seen(life: Life) -> None:
    for kind in ("exclusive", "shared", "key_shared"):
        session = Session(life, kind)
        assert not session.bring(0, 1, 2)
        (problem, *_) = session.bring(1)
        assert problem.endswith("in a session, and was not given back"), kind
        session.give_back(2)
        assert not session.bring(2)
        session.number += 1
        assert not session.bring(0, 1, 2), "to a session that begins all may come"


def test_what_comes_back_in_a_session_is_seen(life: Life) -> None:
    exclusive, shared = Session(life, "exclusive"), Session(life, "shared")
    life.unsure["p:1"] = 1  # it may come again, and at another place: this rule is about places
    (problem,) = exclusive.bring(0, 2, 1)
    assert problem.endswith("comes after (1, 2, -1) in one session")
    assert not shared.bring(0, 2, 1)


def test_a_producers_messages_in_another_order_are_seen(life: Life) -> None:
    failover = Session(life, "failover")
    (problem,) = failover.bring(0, 2, 1)
    assert problem.endswith("p:1 comes after p:2")


def test_what_does_not_come_again_after_a_seek_is_seen(life: Life) -> None:
    session = Session(life, "exclusive")
    life.keeps = True
    life.sent[TOPIC] = {"p:0": (1, 0), "p:1": (1, 1)}
    assert not session.bring(0, 1)
    assert not life._unsettled()
    session.subscription.sought = lives._Sought(session.consumer, session.number, frozenset(life.sent[TOPIC]))
    again = "did not get ['p:0', 'p:1'] again after its seek"
    assert life._unsettled().endswith(again)
    session.bring(0, 1)
    assert life._unsettled().endswith(again), "what comes in the session of before does not count"
    session.number += 1
    session.bring(0)
    assert life._unsettled().endswith("did not get ['p:1'] again after its seek")
    session.bring(1)
    assert not life._unsettled()
