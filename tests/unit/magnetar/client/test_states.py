"""What the logger `magnetar.client` is told: each state of a producer and a consumer, with its reason."""

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

import magnetar
from broker.grpc.service import GrpcServer
from magnetar.client.async_client import AsyncClient
from magnetar.client.base.states import StateChange
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door

__all__ = ["client", "door", "world"]

TOPIC = "persistent://public/default/t"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "magnetar.client")
    return caplog


def states(told: pytest.LogCaptureFixture, kind: str) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in told.records
        if record.name == "magnetar.client" and f"({kind})" in record.getMessage()
    ]


@pytest.mark.parametrize("kind", ["producer", "consumer"])
async def test_connecting_connected_lost_back_and_closed(
    world: BrokerInMemory, client: AsyncClient, told: pytest.LogCaptureFixture, kind: str
) -> None:
    part = await (client.producer(TOPIC) if kind == "producer" else client.consumer(TOPIC, "s"))
    await next(iter(world.broker.topics.values())).close()
    world.broker.topics.clear()
    await eventually(lambda: any("again" in text for _, text in states(told, kind)))
    await part.close()
    seen = states(told, kind)
    assert [(level, text) for level, text in seen if level != "DEBUG"] == [
        ("INFO", f"{TOPIC}: connected ({kind})"),
        (
            "WARNING",
            f"{TOPIC}: connection lost ({kind}): {TOPIC}: closed by the broker; look the topic up again and retry",
        ),
        ("INFO", f"{TOPIC}: connected again ({kind})"),
        ("INFO", f"{TOPIC}: closed ({kind})"),
    ]
    assert seen[0] == ("DEBUG", f"{TOPIC}: connecting ({kind})")


async def test_refused(client: AsyncClient, told: pytest.LogCaptureFixture) -> None:
    async with client.consumer(TOPIC, "s"):
        with pytest.raises(magnetar.TopicError):
            await client.consumer(TOPIC, "s").open()
    ((level, text),) = [one for one in states(told, "consumer") if "not connected" in one[1]]
    assert level == "ERROR"
    assert "Exclusive consumer is already connected" in text


async def test_closed_for_good_when_the_topic_is_gone(
    client: AsyncClient, world: BrokerInMemory, told: pytest.LogCaptureFixture
) -> None:
    await world.set_policies("public/default", autoTopicCreationOverride={"allowAutoTopicCreation": False})
    await client.topics.create(TOPIC)
    consumer = await client.consumer(TOPIC, "s")
    await client.topics.delete(TOPIC, force=True)
    async with asyncio.timeout(4):
        with pytest.raises(magnetar.TopicError):
            await consumer.receive()
    assert any(level == "ERROR" and "closed for good" in text for level, text in states(told, "consumer"))


async def test_refused_acks_are_told(client: AsyncClient, told: pytest.LogCaptureFixture) -> None:
    async with client.consumer(TOPIC, "s", type="shared", from_earliest=True) as consumer:
        (first, *_) = await client.producer(TOPIC).send_many([b"a", b"b"])
        await consumer.receive(5)
        consumer.ack(magnetar.MessageId(first.ledger_id, first.entry_id, -1, 0, 7))
        with pytest.raises(magnetar.TopicError, match=r"acknowledgements are refused.*give an id back as it came"):
            await consumer.flush()
    assert any("acknowledgements are refused" in record.getMessage() for record in told.records)


def test_without_a_handler_nothing_is_written() -> None:
    """`logging` would write warnings to stderr by itself."""
    assert any(isinstance(one, logging.NullHandler) for one in logging.getLogger("magnetar.client").handlers)


@pytest.mark.parametrize("kind", ["producer", "consumer"])
async def test_a_program_is_told_of_the_same_states(world: BrokerInMemory, door: GrpcServer, kind: str) -> None:
    seen = list[StateChange]()

    def on_state(change: StateChange) -> None:
        seen.append(change)
        raise LookupError("an error of the program, which ends nothing")

    async with AsyncClient(f"127.0.0.1:{door.port}", operation_timeout_s=30, on_state=on_state) as made:
        part = await (made.producer(TOPIC) if kind == "producer" else made.consumer(TOPIC, "s"))
        await next(iter(world.broker.topics.values())).close()
        world.broker.topics.clear()
        await eventually(lambda: [one.state for one in seen].count("connected") == 2)
        await part.close()
    assert [(one.topic, one.part, one.state) for one in seen] == [
        (TOPIC, kind, state) for state in ("connecting", "connected", "lost", "connected", "closed")
    ]
    assert [bool(one.reason) for one in seen] == [False, False, True, False, False]
    assert "closed by the broker" in seen[2].reason


async def test_a_program_is_told_why_it_is_refused(door: GrpcServer) -> None:
    seen = list[StateChange]()
    async with AsyncClient(f"127.0.0.1:{door.port}", operation_timeout_s=30, on_state=seen.append) as made:
        async with made.consumer(TOPIC, "s"):
            with pytest.raises(magnetar.TopicError):
                await made.consumer(TOPIC, "s").open()
        (refused,) = [one for one in seen if one.state == "refused"]
        assert "Exclusive consumer is already connected" in refused.reason


async def test_a_callback_on_the_clients_own_thread_is_told_that_it_would_wait_for_itself(door: GrpcServer) -> None:
    errors = list[str]()

    def scenario() -> None:
        with magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30, on_state=lambda _: attempt()) as made:
            producer = made.producer(TOPIC)

            def attempt_with(use: Callable[[], object]) -> None:
                try:
                    use()
                except magnetar.TopicError as error:
                    errors.append(str(error))

            def attempt() -> None:
                attempt_with(producer.flush)
                attempt_with(lambda: producer.send(b"x"))

            done = threading.Event()

            def on_sent(_: object) -> None:
                attempt()
                producer.send_async(b"again").add_done_callback(lambda _: done.set())

            producer.send_async(b"first").add_done_callback(on_sent)
            assert done.wait(10)

    await asyncio.to_thread(scenario)
    assert errors
    assert all("would wait for itself" in text for text in errors)
