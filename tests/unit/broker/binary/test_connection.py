"""One connection without a socket: which commands are taken when, and what they lead to."""

from collections.abc import Coroutine
from typing import Any, cast

import pytest

from broker.arrivals import Arrivals
from broker.binary.answers import NO_SCALABLE_TOPICS
from broker.binary.connection import BrokerPort, Connection, State
from broker.binary.watches import WatchedNames
from broker.memory_budget import MemoryBudget
from broker.settings.config import BrokerConfig
from broker.topic.clients.properties import KeptBytes
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE, command, parse_frame
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from tests.support.manual_clock import ManualClock

# What a client may send after CONNECT; whatever else there is ends the connection.
CLIENT_COMMANDS = {
    "PING", "PONG", "LOOKUP", "PARTITIONED_METADATA", "GET_TOPICS_OF_NAMESPACE", "PRODUCER", "CLOSE_PRODUCER",
    "SUBSCRIBE", "FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "UNSUBSCRIBE", "CLOSE_CONSUMER", "SEEK",
    "GET_LAST_MESSAGE_ID", "CONSUMER_STATS", "GET_SCHEMA", "GET_OR_CREATE_SCHEMA", "WATCH_TOPIC_LIST",
    "WATCH_TOPIC_LIST_CLOSE", "TC_CLIENT_CONNECT_REQUEST", "NEW_TXN", "ADD_PARTITION_TO_TXN",
    "ADD_SUBSCRIPTION_TO_TXN", "END_TXN", "END_TXN_ON_PARTITION", "END_TXN_ON_SUBSCRIPTION",
    "SCALABLE_TOPIC_LOOKUP", "SCALABLE_TOPIC_CLOSE", "SCALABLE_TOPIC_SUBSCRIBE", "SCALABLE_TOPIC_UNSUBSCRIBE",
    "WATCH_SCALABLE_TOPICS", "WATCH_SCALABLE_TOPICS_CLOSE", "WATCH_TC_ASSIGNMENTS", "WATCH_TC_ASSIGNMENTS_CLOSE",
}  # fmt: skip


class FakeBroker:
    config = BrokerConfig()
    doors = None
    publishes = MemoryBudget(1 << 30, ManualClock().call_later)
    reads = MemoryBudget(1 << 30, ManualClock().call_later)
    set_aside = MemoryBudget(1 << 30, ManualClock().call_later)
    arrivals = Arrivals(ManualClock())
    kept_properties = KeptBytes.of_broker()

    access = None  # no command is worked on here
    watched_names = WatchedNames()

    def now_ms(self) -> int:
        return 0


class FakeOutbox:
    def __init__(self) -> None:
        self.sent: list[BaseCommand] = []

    def write(self, buffer: Any) -> None:
        self.sent.append(parse_frame(memoryview(buffer)[4:])[0])

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    unsent_bytes = 0

    async def until_drained(self) -> None: ...

    def close(self) -> None: ...

    async def is_alive(self) -> bool:
        return True


def never(work: Coroutine[Any, Any, None], name: str) -> None:
    work.close()


def make() -> tuple[Connection, FakeOutbox]:
    outbox = FakeOutbox()
    return Connection(cast(BrokerPort, FakeBroker()), outbox, never, "/test"), outbox


def frame(kind: int, **fields: Any) -> memoryview:
    return memoryview(command(kind, **fields))[4:]


def filled(kind: int) -> memoryview:
    """A command of that kind with something in its required fields."""
    made = BaseCommand(type=kind)  # type: ignore[arg-type]
    body = getattr(made, BODY_OF_TYPE[kind])
    body.SetInParent()
    _fill(body)
    data = made.SerializeToString()
    return memoryview(len(data).to_bytes(4, "big") + data)


def _fill(body: Any) -> None:
    for field in body.DESCRIPTOR.fields:
        if field.is_required:
            if field.message_type is not None:
                _fill(getattr(body, field.name))
            elif field.enum_type is not None:
                setattr(body, field.name, field.enum_type.values[0].number)
            else:
                setattr(body, field.name, {field.TYPE_STRING: "x", field.TYPE_BYTES: b"x"}.get(field.type, 1))


def connected() -> tuple[Connection, FakeOutbox]:
    connection, outbox = make()
    connection.on_frames([frame(BaseCommand.CONNECT, client_version="test", protocol_version=21)])
    outbox.sent.clear()
    return connection, outbox


def test_connect_is_answered_with_version_size_and_flags() -> None:
    connection, outbox = make()
    connect = frame(BaseCommand.CONNECT, client_version="test", protocol_version=10, proxy_to_broker_url="other:6650")
    connection.on_frames([connect])
    (answer,) = outbox.sent
    assert answer.connected.server_version.startswith("Pulsar Server")
    assert answer.connected.protocol_version == 10
    assert answer.connected.max_message_size == 5 * 1024 * 1024
    assert answer.connected.feature_flags.supports_topic_watchers
    assert answer.connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation


def test_a_ping_is_answered_before_connect() -> None:
    """As Apache's brokers do: so others find out whether it lives."""
    connection, outbox = make()
    connection.on_frames([filled(BaseCommand.PING)])
    assert [answer.type for answer in outbox.sent] == [BaseCommand.PONG]
    assert connection.state is State.START


TAKEN_BEFORE_CONNECT = (BaseCommand.CONNECT, BaseCommand.PING)


@pytest.mark.parametrize("kind", [number for number in BODY_OF_TYPE if number not in TAKEN_BEFORE_CONNECT])
def test_before_connect_everything_else_ends_the_connection(kind: int) -> None:
    connection, outbox = make()
    with pytest.raises(MalformedFrame):
        connection.on_frames([filled(kind)])
    assert outbox.sent == []


@pytest.mark.parametrize("kind", list(BODY_OF_TYPE))
def test_after_connect_only_what_clients_send_is_taken(kind: int) -> None:
    connection, _ = connected()
    if BaseCommand.Type.Name(kind) in CLIENT_COMMANDS:
        connection.on_frames([filled(kind)])
        assert connection.state is State.CONNECTED
    else:
        with pytest.raises(MalformedFrame):
            connection.on_frames([filled(kind)])


@pytest.mark.parametrize(
    "kind",
    [
        BaseCommand.NEW_TXN,
        BaseCommand.TC_CLIENT_CONNECT_REQUEST,
        BaseCommand.END_TXN,
        BaseCommand.ADD_PARTITION_TO_TXN,
    ],
)
def test_what_is_not_there_is_refused_by_name(kind: int) -> None:
    connection, outbox = connected()
    connection.on_frames([filled(kind)])
    (answer,) = outbox.sent
    assert (answer.type, answer.error.request_id, answer.error.error) == (BaseCommand.ERROR, 1, wire.NotAllowedError)


@pytest.mark.parametrize(
    ("asked", "answered", "number"),
    [
        (BaseCommand.SCALABLE_TOPIC_LOOKUP, BaseCommand.SCALABLE_TOPIC_UPDATE, "session_id"),
        (BaseCommand.SCALABLE_TOPIC_SUBSCRIBE, BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE, "request_id"),
        (BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE, BaseCommand.ERROR, "request_id"),
        (BaseCommand.WATCH_SCALABLE_TOPICS, BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE, "watch_id"),
        (BaseCommand.WATCH_TC_ASSIGNMENTS, BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE, "watch_id"),
    ],
)
def test_scalable_topics_are_refused_by_the_answer_that_the_client_waits_for(
    asked: int, answered: int, number: str
) -> None:
    """And the connection goes on, with what is there: a client of 5.0 has its other topics on it."""
    connection, outbox = connected()
    for which in (7, 8):
        connection.on_frames([memoryview(command(asked, **{number: which}))[4:]])
    ends = (BaseCommand.SCALABLE_TOPIC_CLOSE, BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE)
    connection.on_frames([filled(end) for end in ends])
    assert [answer.type for answer in outbox.sent] == [answered] * 2
    bodies = [getattr(answer, BODY_OF_TYPE[answered]) for answer in outbox.sent]
    assert [getattr(body, number) for body in bodies] == [7, 8]
    assert all((body.error, body.message) == (wire.NotAllowedError, NO_SCALABLE_TOPICS) for body in bodies)
    assert connection.state is State.CONNECTED


def test_closing_what_is_not_there_succeeds() -> None:
    connection, outbox = connected()
    connection.on_frames([filled(BaseCommand.CLOSE_PRODUCER), filled(BaseCommand.CLOSE_CONSUMER)])
    connection.on_frames([filled(BaseCommand.WATCH_TOPIC_LIST_CLOSE)])
    assert [answer.type for answer in outbox.sent] == [BaseCommand.SUCCESS] * 3


def test_statistics_of_an_unknown_consumer_are_refused_in_their_own_answer() -> None:
    connection, outbox = connected()
    connection.on_frames([filled(BaseCommand.CONSUMER_STATS)])
    assert outbox.sent[0].consumerStatsResponse.error_code == wire.ConsumerNotFound


def test_a_second_request_with_an_id_under_way_is_refused() -> None:
    connection, outbox = connected()
    for kind in (BaseCommand.PRODUCER, BaseCommand.SUBSCRIBE):
        connection.on_frames([filled(kind), filled(kind)])
        assert outbox.sent.pop().error.error == wire.ServiceNotReady
