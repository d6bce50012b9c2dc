"""How long connections work in one turn of the loop: by a clock that the test moves, and through a broker's port."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from broker.binary.connection import _HANDLERS, Connection
from broker.binary.consumers import ACK_IDS_PER_STEP, ACK_WORDS_LIKE_AN_ID, parts_of
from broker.binary.loop_share import SLICE_S, TASKS_PER_TURN, TURN_S, UNWORKED_SUM_BYTES_MAX, LoopShare, Unworked
from broker.binary.server import ClientProtocol
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages_pb2 import MessageIdData
from managed_ledger.position import Position
from tests.support.waiting import eventually, settle
from tests.unit.broker.binary.test_connection import connected, filled, frame, make
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient

TOPIC = "persistent://public/default/t"


class Loop:
    """Its turns, one by one; work takes as long as it says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.soon: list[Callable[[], None]] = []
        self.share = LoopShare(lambda: self.now_s, self.soon.append)

    def turn(self) -> None:
        soon = self.soon[:]
        del self.soon[:]
        for call in soon:
            call()

    def work(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_slice_ends_and_so_does_a_turn_of_many_slices() -> None:
    loop = Loop()
    slices = 0
    while loop.share.begin_slice():
        assert not loop.share.is_over()
        loop.work(SLICE_S)
        assert loop.share.is_over()
        slices += 1
    assert slices == round(TURN_S / SLICE_S)
    assert not loop.share.begin_slice(), "nobody else in this turn"
    loop.turn()
    assert loop.share.begin_slice()


def test_a_turn_ends_with_so_many_tasks() -> None:
    loop = Loop()
    assert loop.share.begin_slice()
    for _ in range(TASKS_PER_TURN):
        assert not loop.share.is_over()
        loop.share.count_task()
    assert loop.share.is_over()
    assert not loop.share.begin_slice()
    loop.turn()
    assert loop.share.begin_slice()
    assert not loop.share.is_over()


def test_those_that_wait_have_their_slices_in_order_and_who_has_more_to_do_comes_behind_the_others() -> None:
    loop, served = Loop(), list[str]()

    def work(name: str, times: int) -> Callable[[], None]:
        def do() -> None:
            nonlocal times
            served.append(name)
            loop.work(SLICE_S)
            times -= 1
            if times:
                loop.share.wait(do)

        return do

    for name, times in (("much", 4), ("a", 1), ("b", 1), ("c", 1), ("d", 2)):
        loop.share.wait(work(name, times))
    turns = 0
    while len(loop.share):
        before = len(served)
        loop.turn()
        assert len(served) - before <= round(TURN_S / SLICE_S)
        turns += 1
    assert served == ["much", "a", "b", "c", "d", "much", "d", "much", "much"]
    assert turns > 2


def test_work_that_fails_keeps_nobody_from_theirs() -> None:
    loop, served = Loop(), list[int]()

    def fails() -> None:
        raise ValueError("a defect")

    loop.share.wait(fails)
    loop.share.wait(lambda: served.append(1))
    with pytest.raises(ValueError, match="a defect"):
        loop.turn()
    loop.turn()
    assert served == [1]


def test_of_each_source_so_much_waits_and_the_others_are_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.binary.loop_share.UNWORKED_BYTES_MAX", 100)
    told = list[tuple[object, bool]]()
    unworked = Unworked(lambda source: told.append((source, unworked.is_full(source))))
    for size_bytes in (60, 40, 1, 200, -150, -100, -1, 50):
        unworked.add_bytes("a", size_bytes)
        unworked.add_bytes("b", 10)
    assert told == [("a", True), ("a", False)]
    assert (unworked["a"], unworked["b"]) == (100, 80)
    unworked.add_bytes("b", -80)
    assert unworked._bytes == {"a": 100}


def test_all_sources_together_have_a_sum_and_nobody_is_read_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.binary.loop_share.UNWORKED_SUM_BYTES_MAX", 100)
    changed = list[object]()
    unworked = Unworked(changed.append)
    for source in range(10):
        unworked.add_bytes(source, 10)
    assert changed == []
    unworked.add_bytes("a", 1)
    assert changed == [None]
    assert unworked.is_full("a")
    assert unworked.is_full("who brought nothing")
    for source in range(5):
        unworked.add_bytes(source, -10)
    assert changed == [None]
    unworked.add_bytes("a", -1)
    assert changed == [None, None]
    assert not unworked.is_full("a")


async def test_no_client_is_read_while_all_together_have_brought_too_much(world: BrokerInMemory) -> None:
    server = world.broker.server
    client = await RawClient.connect(world.broker.port)
    (side,) = server.clients
    is_read = []
    for more_bytes in (UNWORKED_SUM_BYTES_MAX + 1, -UNWORKED_SUM_BYTES_MAX - 1):
        server.unworked.add_bytes("many others", more_bytes)
        is_read.append(side._is_socket_read)
        client.send(BaseCommand.PING)
    assert is_read == [False, True]
    await client.expect(BaseCommand.PONG)
    await client.expect(BaseCommand.PONG)


# ------------------------------------------------------------------------------------ a connection


def test_who_has_not_left_yet_gets_nothing_any_more() -> None:
    """Else an entry would go from one consumer of a lost connection to the next, and be counted as delivered again."""
    connection, _ = connected()
    before = connection.consumers.is_writable
    steps = connection.on_lost()
    assert (before, connection.consumers.is_writable) == (True, False)
    assert list(steps) == []


def test_a_connection_stops_after_the_command_with_which_its_slice_is_over() -> None:
    connection, outbox = connected()
    left = [4]

    def is_over() -> bool:
        left[0] -= 1
        return left[0] == 0

    frames = [filled(BaseCommand.PING)] * 10
    assert connection.on_frames(frames, is_over) == 4
    assert len(outbox.sent) == 4
    assert connection.on_frames(frames[4:], is_over) == 6
    assert len(outbox.sent) == 10


def test_before_connect_as_well() -> None:
    connection, outbox = make()
    assert connection.on_frames([filled(BaseCommand.PING)] * 10, lambda: True) == 1
    assert len(outbox.sent) == 1


def test_no_command_begins_before_the_one_in_front_of_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, outbox = connected()
    steps = list[int]()

    def in_steps() -> Any:
        for number in range(3):
            yield
            steps.append(number)

    monkeypatch.setitem(_HANDLERS, BaseCommand.ACK, (0, lambda part, ack: in_steps()))
    frames = [frame(BaseCommand.ACK, consumer_id=1, ack_type=0), filled(BaseCommand.PING)]
    assert connection.on_frames(frames, lambda: True) == 1
    for number in range(2):
        assert connection.is_busy
        assert connection.on_frames(frames[1:], lambda: True) == 0
        assert (steps, outbox.sent) == (list(range(number + 1)), [])
    assert connection.on_frames(frames[1:], lambda: True) == 1
    assert (steps, len(outbox.sent), connection.is_busy) == ([0, 1, 2], 1, False)


# ------------------------------------------------------------------------------------ acks


def test_parts_of_an_ack_are_all_of_it_and_each_is_small() -> None:
    ack = wire.CommandAck(consumer_id=7, ack_type=wire.CommandAck.Individual)
    for number in range(1_000):
        words = [1] * (number % 7 * 100)
        ack.message_id.add(ledgerId=number % 3, entryId=number, ack_set=words, batch_size=64 * len(words))
    parts = list(parts_of(ack))
    assert [one for part in parts for one in part.message_id] == list(ack.message_id)
    assert {(part.consumer_id, part.ack_type) for part in parts} == {(7, ack.ack_type)}
    for part in parts:
        assert len(part.message_id) <= ACK_IDS_PER_STEP
        in_sets = sum(len(one.ack_set) for one in part.message_id)
        assert in_sets <= (ACK_IDS_PER_STEP + 20) * ACK_WORDS_LIKE_AN_ID
    assert len(parts) > 5
    cumulative = wire.CommandAck(consumer_id=7, ack_type=wire.CommandAck.Cumulative, message_id=ack.message_id)
    assert list(parts_of(cumulative)) == [cumulative], "it has one id, and the others say that it has no meaning"


@pytest.fixture
async def raw(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RawClient]:
    """At a broker for which each command is a large one and each step a turn, with ten messages of a batch."""
    monkeypatch.setattr("broker.binary.flow.LARGE_COMMAND_BYTES", 1)
    monkeypatch.setattr("broker.binary.consumers.ACK_IDS_PER_STEP", 2)
    monkeypatch.setattr("broker.binary.loop_share.SLICE_S", 0.0)
    client = await RawClient.connect(world.broker.port)
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, subType=wire.CommandSubscribe.Shared)
    client.publish(1, *range(10))
    for _ in range(20):
        await client.answer()
    yield client
    client.close()


def ids(world: BrokerInMemory, *entry_ids: int) -> list[MessageIdData]:
    ledger_id = world.ledger(TOPIC).ledgers.last_confirmed.ledger_id
    return [MessageIdData(ledgerId=ledger_id, entryId=entry_id) for entry_id in entry_ids]


def backlog(world: BrokerInMemory) -> int:
    return world.broker.topics[TopicName.parse(TOPIC)].subscriptions["s"].cursor.backlog()


async def test_an_ack_of_many_ids_takes_turns_and_the_next_command_comes_behind_it(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = list[int]()
    on_frames = Connection.on_frames

    def noting(connection: Connection, *arguments: Any) -> int:
        turns.append(backlog(world))
        return on_frames(connection, *arguments)

    monkeypatch.setattr(Connection, "on_frames", noting)
    raw.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=ids(world, *range(10)), request_id=5)
    raw.send(BaseCommand.PING)
    answer = (await raw.expect(BaseCommand.ACK_RESPONSE)).ackResponse
    assert (answer.request_id, answer.HasField("error")) == (5, False)
    await raw.expect(BaseCommand.PONG)
    assert backlog(world) == 0
    assert set(turns) == {10, 8, 6, 4, 2}, "others had their turn in between"


async def test_an_ack_of_many_ids_is_refused_as_a_whole(world: BrokerInMemory, raw: RawClient) -> None:
    named = [*ids(world, *range(9)), MessageIdData(ledgerId=2**64 - 7, entryId=1)]
    raw.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=named, request_id=5)
    assert "no message id" in (await raw.expect(BaseCommand.ACK_RESPONSE)).ackResponse.message
    assert backlog(world) == 10


async def test_what_an_ack_has_not_come_to_stays_where_its_consumer_is_closed(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = world.broker.topics[TopicName.parse(TOPIC)].subscriptions["s"]
    on_frames = Connection.on_frames

    def closing(connection: Connection, *arguments: Any) -> int:
        done = on_frames(connection, *arguments)
        if backlog(world) == 6:
            subscription.detach_consumers()
            list(subscription.notify_detached())
        return done

    monkeypatch.setattr(Connection, "on_frames", closing)
    raw.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=ids(world, *range(10)), request_id=5)
    await raw.expect(BaseCommand.CLOSE_CONSUMER)
    answer = (await raw.expect(BaseCommand.ACK_RESPONSE)).ackResponse
    assert (answer.error, backlog(world)) == (wire.ConsumerNotFound, 6)
    assert subscription.cursor.mark_delete_position == Position(ids(world, 0)[0].ledgerId, 3)


async def test_of_commands_that_come_at_once_each_turn_has_some_and_their_order_stays(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subscribing begins tasks, which all come in the next turn. The clock stands still: on a busy machine the time of
    a turn would be over before it has as many tasks as it may."""
    monkeypatch.setattr(world.broker.server.share, "_now_s", lambda: 0.0)
    client = await RawClient.connect(world.broker.port)
    (server_side,) = world.broker.server.clients
    at_once, under_way = list[int](), set[int]()
    spawn = server_side._tasks.spawn

    def counted(work: Any, name: str) -> Any:
        number = len(at_once)

        async def run() -> None:
            under_way.discard(number)
            await work

        under_way.add(number)
        at_once.append(len(under_way))
        return spawn(run(), name)

    server_side._tasks.spawn = counted  # type: ignore[assignment,method-assign]
    count = 3 * TASKS_PER_TURN
    for number in range(count):
        client.send(
            BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=number, request_id=number,
            subType=wire.CommandSubscribe.Shared,
        )  # fmt: skip
    for _ in range(count):
        await client.expect(BaseCommand.SUCCESS)
    assert (len(at_once), max(at_once)) == (count, TASKS_PER_TURN)
    client.close()


async def test_what_was_read_is_worked_on_in_order_when_others_have_used_up_the_turn(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = world.broker.server.share
    client = await RawClient.connect(world.broker.port)
    begin_slice, refused = share.begin_slice, list[int]()

    def others_first() -> bool:
        if len(refused) % 3 != 2:
            refused.append(1)
            return False
        refused.append(0)
        return begin_slice()

    monkeypatch.setattr(share, "begin_slice", others_first)
    await client.produce(TOPIC)
    await client.subscribe(TOPIC)
    for number in range(50):
        client.publish(1, number)
        if number % 10 == 0:
            await asyncio.sleep(0.001)
    got = list[int]()
    while len(got) < 50:
        answer = await client.answer()
        if answer.type == BaseCommand.MESSAGE:
            got.append(answer.message.message_id.entryId)
    assert got == list(range(50))
    assert sum(refused) > 3
    client.close()


# ------------------------------------------------------------------------------------ what waits


async def test_what_the_connections_of_one_client_bring_has_a_sum_and_the_others_are_read(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a client whose chunks have filled its share another connection is not read either, until half is done."""
    ping = bytes(command(BaseCommand.PING))
    monkeypatch.setattr("broker.binary.loop_share.UNWORKED_BYTES_MAX", 25 * len(ping))
    server = world.broker.server
    monkeypatch.setattr(ClientProtocol, "source", property(lambda one: one._peer_name))
    names = ["greedy", "greedy", "greedy", "other"]
    clients = list[RawClient]()
    sides = list[ClientProtocol]()
    for name in names:
        monkeypatch.setattr(ClientProtocol, "_peer_name", name, raising=False)
        clients.append(await RawClient.connect(world.broker.port))
        (side,) = server.clients.keys() - set(sides)
        side._peer_name = name  # type: ignore[attr-defined]
        sides.append(side)
    begin_slice, wait, later = server.share.begin_slice, server.share.wait, list[Callable[[], None]]()
    monkeypatch.setattr(server.share, "begin_slice", lambda: False)
    monkeypatch.setattr(server.share, "is_over", lambda: False)
    monkeypatch.setattr(server.share, "wait", later.append)
    for client in clients[:2]:
        client.writer.write(ping * 20)
    await eventually(lambda: len(later) == 2)
    assert (server.unworked["greedy"], server.unworked.is_full("greedy")) == (40 * len(ping), True)
    assert [side._is_socket_read for side in sides] == [False, False, False, True]
    clients[2].writer.write(ping)
    clients[3].writer.write(ping)
    await eventually(lambda: len(later) == 3)
    assert (later.pop()(), (await clients[3].answer()).type) == (None, BaseCommand.PONG)
    assert sides[2]._chunks == []
    later.pop(0)()
    assert (server.unworked["greedy"], sides[2]._is_socket_read) == (20 * len(ping), False), "more than half"
    sides[1].pause_reading()  # its client does not take its answers: its others do not wait for that
    assert (server.unworked["greedy"], sides[2]._is_socket_read) == (0, True)
    sides[1].resume_reading()
    assert (server.unworked["greedy"], sides[2]._is_socket_read) == (20 * len(ping), True)
    monkeypatch.setattr(server.share, "begin_slice", begin_slice)
    monkeypatch.setattr(server.share, "wait", wait)
    for work in later:
        work()
    await clients[2].expect(BaseCommand.PONG)
    for client in clients:
        client.close()
    await eventually(lambda: not server.unworked._bytes)


# ------------------------------------------------------------------------------------ a lost connection


async def test_what_a_lost_connection_had_leaves_in_turns_and_who_wants_its_place_waits_for_that(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, comes = await RawClient.connect(world.broker.port), await RawClient.connect(world.broker.port)
    for number in range(5):
        await gone.produce(TOPIC, producer_id=number, producer_name=f"p{number}")
        await gone.subscribe(TOPIC, consumer_id=number, subscription=f"s{number}")
    topic = world.broker.topics[TopicName.parse(TOPIC)]

    def attached() -> int:
        return len(topic.producers) + sum(len(one.consumers) for one in topic.subscriptions.values())

    later = list[Callable[[], None]]()
    monkeypatch.setattr("broker.binary.loop_share.SLICE_S", 0.0)
    monkeypatch.setattr(world.broker.server.share, "wait", later.append)
    gone.writer.transport.abort()
    await eventually(lambda: bool(later))
    assert attached() == 9, "one with each turn"
    comes.send(
        BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s4", consumer_id=1, request_id=1,
        subType=wire.CommandSubscribe.Exclusive,
    )  # fmt: skip
    await settle()
    comes.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=2, producer_name="p4")
    await settle()
    turns = 0
    while later:
        assert attached() == 9 - turns
        later.pop()()
        turns += 1
    assert turns == 10, "the last sees that nobody is left"
    answers = [(await comes.answer()).type for _ in range(2)]
    assert set(answers) == {BaseCommand.SUCCESS, BaseCommand.PRODUCER_SUCCESS}
    comes.close()


async def test_what_comes_while_a_chunk_waits_is_behind_it(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is read no more may bring something all the same, over TLS."""
    client = await RawClient.connect(world.broker.port)
    (server_side,) = world.broker.server.clients
    share = world.broker.server.share
    begin_slice, answers = share.begin_slice, [False]
    monkeypatch.setattr(share, "begin_slice", lambda: begin_slice() and (not answers or answers.pop()))
    ping = bytes(command(BaseCommand.PING))
    server_side.data_received(ping[:6])
    assert not answers, "its turn is over"
    server_side.data_received(ping[6:])
    await client.expect(BaseCommand.PONG)
    client.close()
