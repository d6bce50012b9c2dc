"""How calls of the topic API end, and what ends with whom: at their limit, with their client, and not before."""

import asyncio
import concurrent.futures
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import magnetar
import magnetar.client.publishing
from broker.grpc.service import GrpcServer
from magnetar.client.async_client import AsyncClient
from magnetar.client.brokers import Brokers
from magnetar.client.consuming import ConsumeStream
from magnetar.client.errors import ClientClosed, TopicUnavailable
from magnetar.client.publishing import PublishStream
from magnetar.client.stream import CLOSE_S, Phase
from magnetar_core.topics.message_id import MessageId
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually, take_turns
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door

__all__ = ["client", "door", "world"]

# Less than the limits of the clients here: what takes longer has ended by its limit, or never would.
PATIENCE_S = 4.0


@pytest.fixture
def stored_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker takes messages and answers none."""
    monkeypatch.setattr(PublishStream, "_on_answer", lambda *_: None)


def clients_of(door: GrpcServer, **options: Any) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{door.port}", operation_timeout_s=30, **options)


# -------------------------------------------------------------------------------- what was sent is not lost


@pytest.mark.parametrize("first_turns", [0, 1, 2])
@pytest.mark.parametrize("end", ["flush", "close", "client"])
async def test_a_producer_that_is_opened_by_its_first_send_loses_nothing(
    client: AsyncClient, end: str, first_turns: int
) -> None:
    producer = client.producer("t")
    sending = [asyncio.create_task(producer.send(b"x")) for _ in range(200)]
    for _ in range(first_turns):
        await asyncio.sleep(0)
    await (client.close() if end == "client" else getattr(producer, end)())
    await asyncio.sleep(0)
    assert all(task.done() for task in sending)
    assert len({task.result() for task in sending}) == 200


@pytest.mark.parametrize("end", ["flush", "close"])
async def test_what_waits_for_room_is_sent_before_the_end(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(magnetar.client.publishing, "PENDING_MESSAGES_MAX", 4)
    producer = await client.producer("t")
    sending = [asyncio.create_task(producer.send(b"x")) for _ in range(50)]
    await getattr(producer, end)()
    await asyncio.sleep(0)
    assert len({task.result() for task in sending}) == 50


async def test_one_that_is_closed_while_it_is_opened_again_ends_soon(
    client: AsyncClient, world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await client.producer("t")
    (stream,) = producer._streams
    real, is_open, goes_on = stream._attempt, asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        call = await real()
        is_open.set()
        await goes_on.wait()
        return call

    monkeypatch.setattr(stream, "_attempt", slow)
    await world.broker.opening.unload(TopicName.parse("t"))
    await asyncio.wait_for(is_open.wait(), PATIENCE_S)
    closing = asyncio.ensure_future(producer.close())
    await eventually(lambda: stream._phase is Phase.ENDING)
    goes_on.set()
    await asyncio.wait_for(closing, CLOSE_S / 2)
    assert stream._task is not None
    assert not stream._task.cancelled(), "it has ended by itself"


async def test_a_flush_ends_although_others_go_on_sending(client: AsyncClient) -> None:
    producer = await client.producer("t")

    async def send() -> None:
        while True:
            await producer.send(b"x")

    sending = [asyncio.create_task(send()) for _ in range(10)]
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            await producer.flush()
    for task in sending:
        task.cancel()


# -------------------------------------------------------------------------------- limits


async def test_the_time_to_send_holds_while_it_connects() -> None:
    async with AsyncClient("127.0.0.1:1", operation_timeout_s=60) as client, asyncio.timeout(PATIENCE_S):
        producer = client.producer("t", send_timeout_s=0.1)
        results = await asyncio.gather(*(producer.send(b"x") for _ in range(3)), return_exceptions=True)
        assert all(isinstance(one, TopicUnavailable) and "refused" in str(one) for one in results)


async def test_and_while_it_waits_for_room(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, stored_never: None
) -> None:
    monkeypatch.setattr(magnetar.client.publishing, "PENDING_MESSAGES_MAX", 2)
    monkeypatch.setattr(PublishStream, "_sweep", lambda _: None)  # those before them stay for ever
    producer = await client.producer("t", send_timeout_s=0.05)
    first = [asyncio.ensure_future(producer.send(b"x")) for _ in range(3)]
    await take_turns()
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*(producer.send(b"x") for _ in range(3)), return_exceptions=True)
    assert all("not sent within 0.05 s: messages before it" in str(one) for one in results)
    producer._streams[0]._fail(ClientClosed("the test is over"))
    await asyncio.gather(*first, return_exceptions=True)


async def test_an_operation_ends_at_its_limit_whatever_it_waits_for(
    door: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(Brokers, "ask", hang)
    async with AsyncClient(f"127.0.0.1:{door.port}", operation_timeout_s=0.1) as client, asyncio.timeout(PATIENCE_S):
        for call in (client.topics.list(), client.consumer("t", "s").open(), client.reader("t").has_more()):
            with pytest.raises(TopicUnavailable, match=r"tried for 0\.1 s"):
                await call


async def test_a_thread_that_receives_with_a_limit_does_not_wait_for_one_without(door: GrpcServer) -> None:
    def scenario() -> None:
        with magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as client:
            consumer = client.consumer("t", "s")
            waiting = threading.Thread(target=lambda: list(consumer))
            waiting.start()
            while not consumer._lock.locked():
                pass
            with pytest.raises(TimeoutError):
                consumer.receive(0.05)
            assert consumer.receive_batch(5, 0.05) == []
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()

    await asyncio.to_thread(scenario)


# -------------------------------------------------------------------------------- calls that wait when it is closed


def hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker answers no request of consumers, and acknowledges no message."""
    monkeypatch.setattr(PublishStream, "_on_answer", lambda *_: None)
    monkeypatch.setattr(ConsumeStream, "_on_answer", lambda *_: None)
    monkeypatch.setattr("magnetar.client.consuming.CLOSE_S", 0.05)


WAITING: dict[str, Callable[[AsyncClient, Any], Any]] = {
    "receive": lambda _, consumer: consumer.receive(),
    "receive_batch": lambda _, consumer: consumer.receive_batch(),
    "flush": lambda _, consumer: consumer.flush(),
    "seek": lambda _, consumer: consumer.seek("earliest"),
    "nack": lambda _, consumer: consumer.nack(MessageId(0, 0)),
    "ack_cumulative": lambda _, consumer: consumer.ack_cumulative(MessageId(0, 0)),
}


@pytest.mark.parametrize("who", ["consumer", "client"])
@pytest.mark.parametrize("call", WAITING)
async def test_a_call_of_a_consumer_that_waits_ends_when_it_is_closed(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, call: str, who: str
) -> None:
    consumer = await client.consumer("t", "s")
    hung(monkeypatch)
    waiting = asyncio.ensure_future(WAITING[call](client, consumer))
    await take_turns()
    assert not waiting.done()
    async with asyncio.timeout(PATIENCE_S):
        await (consumer if who == "consumer" else client).close()
        with pytest.raises(ClientClosed):
            await waiting


async def test_what_still_connects_ends_when_the_client_is_closed() -> None:
    client = AsyncClient("127.0.0.1:1", operation_timeout_s=60)
    waiting = [
        asyncio.ensure_future(one)
        for one in (client.consumer("t", "s").receive(), client.consumer("t", "s").open(), client.reader("t").open())
    ]
    await take_turns()
    async with asyncio.timeout(PATIENCE_S):
        await client.close()
        for one in waiting:
            with pytest.raises(ClientClosed):
                await one


async def test_a_closed_client_makes_nothing_new(client: AsyncClient) -> None:
    producer, consumer = client.producer("t"), client.consumer("t", "s")
    await client.close()
    makers: list[Callable[[], Any]] = [
        lambda: client.producer("t"), lambda: client.consumer("t", "s"), lambda: client.reader("t"),
    ]  # fmt: skip
    for make in makers:
        with pytest.raises(ClientClosed):
            make()
    for call in (producer.send(b"x"), consumer.receive(), client.topics.list()):
        with pytest.raises(ClientClosed):
            await call


async def test_a_wait_that_a_signal_ends_takes_no_message_with_it(
    door: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a worker that gets SIGTERM: its handler raises, and what comes later is for the next call."""

    class Stop(Exception):
        pass

    def interrupted(future: concurrent.futures.Future[Any], timeout: float | None = None) -> Any:
        concurrent.futures.wait([future], 0.02)
        raise Stop

    def scenario() -> bytes:
        with magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as made:
            consumer, producer = made.consumer("t", "s"), made.producer("t")
            with monkeypatch.context() as patched:
                patched.setattr(concurrent.futures.Future, "result", interrupted)
                with pytest.raises(Stop):
                    consumer.receive()
            producer.send(b"x")
            return consumer.receive(2).payload

    assert await asyncio.to_thread(scenario) == b"x"


# -------------------------------------------------------------------------------- an acknowledgement that cannot be


async def test_an_ack_that_cannot_be_does_not_touch_those_behind_it(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.consumer("t", "s", type="shared", from_earliest=True) as consumer:
        for number in range(3):
            await client.producer("t").send(b"%d" % number)
        messages = [await consumer.receive(5) for _ in range(3)]
        wrong: list[Any] = [[b"0"], "0:0:-1", [None], [messages[0], 1], MessageId(2**70, 0), MessageId(1.5, 0)]  # type: ignore[arg-type]
        for one in wrong:
            with pytest.raises((TypeError, ValueError)):
                consumer.ack(one)
        consumer.ack(messages)
        await consumer.flush()
        assert (await client.topics.stats("t"))["subscriptions"]["s"]["msgBacklog"] == 0


async def test_a_defect_in_what_is_written_is_an_error_of_the_calls_that_wait(client: AsyncClient) -> None:
    consumer = await client.consumer("t", "s")
    (stream,) = consumer._streams.values()
    stream._acks.append("no id")  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(magnetar.TopicError, match="AttributeError"):
            await consumer.flush()
        with pytest.raises(magnetar.TopicError, match="AttributeError"):
            await consumer.receive()
        with pytest.raises(magnetar.TopicError, match="AttributeError"):
            consumer.ack(MessageId(0, 0))


# -------------------------------------------------------------------------------- who closes what


async def test_a_producer_that_is_shared_ends_with_the_last_that_holds_it(client: AsyncClient) -> None:
    one, other = client.producer("t"), client.producer("t")
    await one.send(b"x")
    (stream,) = one._streams
    assert other._streams == [stream], "they share it"
    await one.close()
    await one.close()
    with pytest.raises(ClientClosed):
        await one.send(b"x")
    await other.send(b"x")
    await other.close()
    assert stream.failure is not None
    with pytest.raises(ClientClosed):
        await other.send(b"x")
    await client.producer("t").send(b"x")


async def test_one_that_was_dropped_holds_nothing(client: AsyncClient) -> None:
    await client.producer("t").send(b"x")
    async with client.producer("t") as producer:
        (stream,) = producer._streams
    assert stream.failure is not None


@pytest.mark.parametrize("part", ["producer", "consumer", "client"])
async def test_a_close_that_is_cancelled_goes_on(
    world: BrokerInMemory, client: AsyncClient, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = await client.producer("t", name="me"), await client.consumer("t", "s")
    topic = next(iter(world.broker.topics.values()))
    closed: Any = {"producer": producer, "consumer": consumer, "client": client}[part]
    closing = asyncio.ensure_future(closed.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    if part != "producer":
        await eventually(lambda: not topic.subscriptions["s"].consumers)
    if part != "consumer":
        await eventually(lambda: not topic.producers)
    await closed.close()


def test_a_client_belongs_to_one_loop() -> None:
    client = AsyncClient("127.0.0.1:1", operation_timeout_s=0.05)
    producer, consumer = client.producer("t"), client.consumer("t", "s")

    async def first() -> None:
        with pytest.raises(TopicUnavailable):
            await client.topics.list()

    async def second() -> None:
        for call in (client.topics.list(), producer.send(b"x"), producer.flush(), consumer.receive(), consumer.open()):
            with pytest.raises(ClientClosed, match=r"another event loop.*each asyncio\.run"):
                await call
        await client.close()

    asyncio.run(first())
    asyncio.run(second())


async def test_open_streams_belong_to_one_loop(client: AsyncClient) -> None:
    producer, consumer = await client.producer("t"), await client.consumer("t", "s")
    id_ = await producer.send(b"x")
    message = await consumer.receive(5)

    async def elsewhere() -> None:
        for call in (
            producer.send(b"x"), producer.send_many([b"x"]), producer.flush(), consumer.flush(), consumer.seek(id_),
            consumer.nack(message), consumer.receive(), client.close(),
        ):  # fmt: skip
            with pytest.raises(ClientClosed, match="another event loop"):
                await call

    await asyncio.to_thread(asyncio.run, elsewhere())


# -------------------------------------------------------------------------------- nothing is left behind


def tasks_of_clients() -> list[asyncio.Task[Any]]:
    """Those that run; the broker's are on the same loop."""
    folder = str(Path(magnetar.__file__).parent / "client")
    return [task for task in asyncio.all_tasks() if folder in str(getattr(task.get_coro(), "cr_code", ""))]


@pytest.mark.parametrize("options", [{"mix_keys": True}, {"send_timeout_s": 7}, {"schema": magnetar.Schema("string")}])
async def test_producers_made_anew_for_each_message_share_their_tasks(
    client: AsyncClient, options: dict[str, Any]
) -> None:
    await client.producer("t", **options).send(b"x")
    await take_turns()
    tasks = len(tasks_of_clients())
    for _ in range(10):
        await client.producer("t", **options).send(b"x")
    await take_turns()
    assert len(tasks_of_clients()) == tasks == 2, "one reads, one writes"
    assert len(client._open) == 1


async def test_a_client_that_is_dropped_warns_and_ends(door: GrpcServer) -> None:
    dropped = clients_of(door)
    await dropped.producer("t").send(b"x")
    await dropped.consumer("t", "s").open()
    gone = weakref.ref(dropped._brokers)
    del dropped
    with pytest.warns(ResourceWarning, match="AsyncClient was not closed"):
        gc.collect()
    await eventually(lambda: gone() is None or gone()._channels == {})  # type: ignore[union-attr]
    await eventually(lambda: not tasks_of_clients())


async def test_a_client_that_is_used_by_its_parts_is_not_dropped(door: GrpcServer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        topics, producer = clients_of(door).topics, clients_of(door).producer("t")
        gc.collect()
        await producer.send(b"x")
        assert await topics.list() == ["persistent://public/default/t"]
        await topics._owner.close()  # type: ignore[attr-defined]
        await producer.sender._on_close.__self__.close()  # type: ignore[attr-defined]


async def test_a_blocking_client_that_is_dropped_warns_and_ends_with_its_thread(door: GrpcServer) -> None:
    def scenario() -> threading.Thread:
        made = magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30)
        producer = made.producer("t")
        producer.send(b"x")
        thread = made._loop._thread
        del made
        gc.collect()
        producer.send(b"it holds the client")
        parts = [producer]
        del producer
        with pytest.warns(ResourceWarning, match=r"magnetar\.Client was not closed"):
            parts.clear()
        thread.join(PATIENCE_S)
        return thread

    assert not (await asyncio.to_thread(scenario)).is_alive()


async def test_closed_clients_leave_no_thread_task_or_descriptor(door: GrpcServer) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def scenario() -> None:
        with (
            magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as made,
            made.consumer("t", "s", type="shared"),
            made.producer("t", mix_keys=True) as producer,
        ):
            producer.send(b"x")

    await asyncio.to_thread(scenario)
    threads, files = threading.active_count(), descriptors()
    for _ in range(3):
        await asyncio.to_thread(scenario)
    await eventually(lambda: threading.active_count() <= threads)
    await eventually(lambda: descriptors() <= files + 1)
