"""`Producer.send_async`: in the order of the calls, bounded, and no future is left alone."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import magnetar
from broker.grpc.service import GrpcServer
from magnetar.client.blocking import sending
from magnetar.client.blocking.producer import Producer
from magnetar.client.errors import ClientClosed, MessageRefused, TopicUnavailable
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import door

__all__ = ["door", "world"]

PATIENCE_S = 10


@dataclass
class Reading:
    celsius: float


async def on_thread(door: GrpcServer, scenario: Callable[[magnetar.Client], Any], **options: Any) -> Any:
    """What *scenario* returns, which runs with a client that is closed after it."""

    def run() -> Any:
        with magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30, **options) as made:
            return scenario(made)

    return await asyncio.wait_for(asyncio.to_thread(run), 3 * PATIENCE_S)


def payloads(client: magnetar.Client, topic: str, count: int) -> list[bytes]:
    with client.reader(topic) as reader:
        made = [reader.receive(5).payload for _ in range(count)]
        assert not reader.has_more()
        return made


async def test_messages_are_stored_in_the_order_of_the_calls(door: GrpcServer) -> None:
    def scenario(client: magnetar.Client) -> None:
        with client.producer("t") as producer:
            futures = [producer.send_async(b"%d" % n) for n in range(500)]
            id_ = producer.send(b"500")
            futures += [producer.send_async(b"%d" % n) for n in range(501, 600)]
            producer.send_many([b"600", b"601"])
            ids = [future.result(PATIENCE_S) for future in futures]
            assert ids == sorted(ids)
            assert len(set(ids)) == 599
            assert id_ not in ids
        assert payloads(client, "t", 602) == [b"%d" % n for n in range(602)]

    await on_thread(door, scenario)


async def test_several_threads_keep_each_its_order(door: GrpcServer) -> None:
    def scenario(client: magnetar.Client) -> None:
        producer = client.producer("t")

        def send(who: bytes) -> None:
            for n in range(200):
                producer.send_async(who + b"%d" % n)

        threads = [threading.Thread(target=send, args=(who,)) for who in (b"a", b"b", b"c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        stored = payloads(client, "t", 600)
        for who in (b"a", b"b", b"c"):
            assert [one for one in stored if one.startswith(who)] == [who + b"%d" % n for n in range(200)]

    await on_thread(door, scenario)


@pytest.mark.parametrize("end", ["flush", "close", "client"])
async def test_what_was_sent_before_the_end_is_acknowledged(door: GrpcServer, end: str) -> None:
    def scenario(client: magnetar.Client) -> None:
        producer = client.producer("t")  # it is not open yet
        futures = [producer.send_async(b"%d" % n) for n in range(200)]
        if end == "client":
            client.close()
        else:
            getattr(producer, end)()
        assert all(future.done() for future in futures)
        assert len({future.result(0) for future in futures}) == 200
        if end != "flush":
            with pytest.raises(ClientClosed):
                producer.send_async(b"late")

    await on_thread(door, scenario)


async def test_partitions_and_keys(door: GrpcServer) -> None:
    def scenario(client: magnetar.Client) -> None:
        client.topics.create("p", partitions=3)
        producer = client.producer("p")
        futures = [producer.send_async(b"%d" % n, key=f"k{n % 5}") for n in range(50)]
        ids = [future.result(PATIENCE_S) for future in futures]
        assert {id_.partition for id_ in ids} <= {0, 1, 2}
        for key in range(5):
            assert len({ids[n].partition for n in range(key, 50, 5)}) == 1

    await on_thread(door, scenario)


async def test_a_value_is_checked_at_the_call(door: GrpcServer) -> None:
    def scenario(client: magnetar.Client) -> None:
        producer = client.producer("t", value=Reading)
        wrong: Any = Reading("warm")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"Reading\.celsius is str; it takes float"):
            producer.send_async(wrong)
        with pytest.raises(ValueError, match="sequence_id is -1"):
            producer.send_async(Reading(1.0), sequence_id=-1)
        assert producer.send_async(Reading(1.0), key="k", sequence_id=5).result(PATIENCE_S).entry_id >= 0

    await on_thread(door, scenario)


async def test_a_message_that_is_refused_is_the_error_of_its_future_alone(
    world: BrokerInMemory, door: GrpcServer
) -> None:
    most = world.broker.config.max_message_bytes

    def scenario(client: magnetar.Client) -> None:
        producer = client.producer("t")
        futures = [producer.send_async(one) for one in (b"before", b"x" * (most + 1), b"behind")]
        assert futures[0].result(PATIENCE_S) < futures[2].result(PATIENCE_S)
        with pytest.raises(MessageRefused, match="maxMessageSize"):
            futures[1].result(PATIENCE_S)

    await on_thread(door, scenario)


NOT_HELD = b"not held"


async def held(door: GrpcServer, scenario: Callable[[magnetar.Client, Producer[bytes], threading.Event], None]) -> None:
    """Run *scenario* with a producer whose messages do not begin until the event is set."""

    def with_hold(client: magnetar.Client) -> None:
        producer = client.producer("t", send_timeout_s=1.0)
        producer.send(b"first")
        free = threading.Event()
        sender = producer._producer.sender
        begin = sender.begin

        async def hold(message: Any, *arguments: Any) -> Any:
            while not (free.is_set() or message.payload == NOT_HELD):
                await asyncio.sleep(0.01)
            return await begin(message, *arguments)

        held_sender: Any = sender
        held_sender.begin = hold
        try:
            scenario(client, producer, free)
        finally:
            free.set()

    await on_thread(door, with_hold)


@pytest.mark.parametrize("many", [False, True])
async def test_send_waits_its_turn_behind_what_has_not_begun(door: GrpcServer, many: bool) -> None:
    def scenario(client: magnetar.Client, producer: Producer[bytes], free: threading.Event) -> None:
        for payload in (b"1", b"2"):
            producer.send_async(payload)
        threading.Timer(0.2, free.set).start()
        if many:
            producer.send_many([NOT_HELD])
        else:
            producer.send(NOT_HELD)
        assert payloads(client, "t", 4) == [b"first", b"1", b"2", NOT_HELD]

    await held(door, scenario)


@pytest.mark.parametrize("limit", ["PENDING_MESSAGES_MAX", "PENDING_BYTES_MAX"])
async def test_a_call_waits_while_too_many_are_on_their_way(
    door: GrpcServer, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, limit, 10)

    def scenario(client: magnetar.Client, producer: Producer[bytes], free: threading.Event) -> None:
        futures = [producer.send_async(b"") for _ in range(10)]
        if limit == "PENDING_BYTES_MAX":
            futures.append(producer.send_async(b"x" * 20))
        with pytest.raises(TopicUnavailable, match="not sent within 1 s: messages before it are not acknowledged"):
            producer.send_async(b"")
        threading.Timer(0.1, free.set).start()
        futures.append(producer.send_async(b"there is room again"))
        for future in futures[-1:]:
            assert future.result(PATIENCE_S).entry_id >= 0

    await held(door, scenario)


async def test_a_future_that_is_cancelled_takes_its_message_back(door: GrpcServer) -> None:
    def scenario(client: magnetar.Client, producer: Producer[bytes], free: threading.Event) -> None:
        under_way, taken_back, last = [producer.send_async(one) for one in (b"1", b"2", b"3")]
        assert taken_back.cancel()
        free.set()
        assert under_way.result(PATIENCE_S) < last.result(PATIENCE_S)
        assert payloads(client, "t", 3) == [b"first", b"1", b"3"]

    await held(door, scenario)


async def test_threads_that_send_while_the_client_is_closed_end_and_so_do_their_futures(
    door: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PENDING_MESSAGES_MAX", 50)  # `close` waits for all that was sent before

    def scenario() -> None:
        for round_ in range(6):
            made = magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30)
            futures = list[concurrent.futures.Future[magnetar.MessageId]]()

            def send(producer: Producer[bytes], futures: list[Any]) -> None:
                try:
                    while True:
                        futures.append(producer.send_async(b"x"))
                except ClientClosed:
                    return

            threads = [threading.Thread(target=send, args=(made.producer("t"), futures), daemon=True) for _ in range(5)]
            for thread in threads:
                thread.start()
            threading.Event().wait(0.02 * round_)
            made.close()
            for thread in threads:
                thread.join(PATIENCE_S)
            assert not any(thread.is_alive() for thread in threads), "it waits for ever"
            assert not concurrent.futures.wait(futures, PATIENCE_S).not_done
            assert {type(future.exception(0)) for future in futures} <= {type(None), ClientClosed}

    await asyncio.wait_for(asyncio.to_thread(scenario), 60)


async def test_a_loop_that_ends_leaves_no_future_alone(door: GrpcServer) -> None:
    def scenario(client: magnetar.Client, producer: Producer[bytes], free: threading.Event) -> None:
        futures = [producer.send_async(b"x") for _ in range(5)]
        client._loop.stop()  # as at the end of a process
        done, left = concurrent.futures.wait(futures, PATIENCE_S)
        assert not left
        for future in done:
            with pytest.raises(ClientClosed):
                future.result(0)
        with pytest.raises(ClientClosed):
            producer.send_async(b"x")

    await held(door, scenario)
