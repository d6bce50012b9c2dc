"""Producers with exclusive access: who waits, who is kept out, and what becomes of one that another has fenced out."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

import magnetar
from broker.grpc.publish import _Call
from broker.grpc.publishing.writer import CLOSED
from broker.grpc.service import GrpcServer
from broker.topic.topic import Topic
from magnetar.client.async_client import AsyncClient
from magnetar.client.async_producer import AsyncProducer
from magnetar.client.base.options import ProducerAccess
from magnetar.client.errors import ClientClosed, ProducerFenced, TopicError, TopicInUse, TopicUnavailable
from magnetar.client.publishing import PublishStream
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door

__all__ = ["client", "door", "world"]

PATIENCE_S = 5.0


@pytest.fixture
def topic_of(world: BrokerInMemory) -> Any:
    def find(name: str = "t") -> Topic:
        return world.broker.topics[TopicName.parse(name)]

    return find


async def stored(client: AsyncClient, topic: str = "t") -> list[bytes]:
    payloads = []
    async with client.reader(topic) as reader:
        while await reader.has_more():
            payloads.append((await reader.receive(PATIENCE_S)).payload)
    return payloads


async def waiting(producer: AsyncProducer[Any], topic: Topic, place: int) -> asyncio.Future[Any]:
    """*producer* is the one that waits at *place*."""
    opening = asyncio.ensure_future(producer.open())
    await eventually(lambda: opening.done() or len(topic._producers._waiting) == place)
    assert not opening.done()
    return opening


async def test_exclusive_access_keeps_others_out(client: AsyncClient, topic_of: Any) -> None:
    producer = client.producer("t", access="exclusive")
    await producer.send(b"1")
    other = client.producer("t", access="exclusive")
    with pytest.raises(ProducerFenced, match=r"exclusive producer: lab-.*; close the others, wait for their end"):
        await other.send(b"x")
    with pytest.raises(TopicInUse, match=r"exclusive producer: .*; close that one, or wait until it has ended"):
        await client.producer("t").send(b"x")
    await producer.close()
    await other.send(b"2")
    assert topic_of()._producers.epoch == 1, "it has been given twice"
    await other.close()
    async with client.producer("t") as shared:
        await shared.send(b"3")
        with pytest.raises(ProducerFenced, match=r"1 existing shared producers; close the others"):
            await client.producer("t", access="exclusive").open()
    assert await stored(client) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("name", ["", "named"])
async def test_those_that_wait_get_it_one_after_the_other(client: AsyncClient, topic_of: Any, name: str) -> None:
    first = await client.producer("t", access="wait_for_exclusive", name=name and f"{name}-1")
    second = client.producer("t", access="wait_for_exclusive", name=name and f"{name}-2")
    third = client.producer("t", access="wait_for_exclusive", name=name and f"{name}-3")
    openings = [await waiting(second, topic_of(), 1), await waiting(third, topic_of(), 2)]
    assert (await client.topics.stats("t"))["publishers"][0]["accessMode"] == "WaitForExclusive"
    assert len((await client.topics.stats("t"))["publishers"]) == 1, "one that waits is none"
    await first.send(b"1")
    await first.close()
    await asyncio.wait_for(openings[0], PATIENCE_S)
    await second.send(b"2")
    assert not openings[1].done()
    await second.close()
    await asyncio.wait_for(openings[1], PATIENCE_S)
    await third.send(b"3")
    assert await stored(client) == [b"1", b"2", b"3"]
    assert topic_of()._producers.epoch == 2


async def test_what_is_sent_while_it_waits_goes_when_it_has_access(client: AsyncClient, topic_of: Any) -> None:
    first = await client.producer("t", access="exclusive")
    second = client.producer("t", access="wait_for_exclusive", send_timeout_s=PATIENCE_S)
    sends = [asyncio.ensure_future(second.send(b"%d" % number)) for number in range(3)]
    await eventually(lambda: topic_of()._producers._waiting)
    assert not any(send.done() for send in sends)
    await first.send(b"first")
    await first.close()
    await asyncio.gather(*sends)
    assert await stored(client) == [b"first", b"0", b"1", b"2"]


@pytest.mark.parametrize("end", ["producer", "client", "cancel", "time", "send"])
async def test_waiting_ends(client: AsyncClient, door: GrpcServer, topic_of: Any, end: str) -> None:
    async with client.producer("t", access="exclusive"), AsyncClient(f"127.0.0.1:{door.port}") as other:
        producer = other.producer("t", access="wait_for_exclusive", send_timeout_s=0.2)
        if end == "time":
            with pytest.raises(TopicUnavailable, match=r"not open within 0.2 s: .*waits for exclusive access"):
                await producer.open(timeout_s=0.2)
        elif end == "send":
            with pytest.raises(TopicUnavailable, match=r"not sent within 0.2 s: .*waits for exclusive access"):
                await producer.send(b"x")
        else:
            opening = await waiting(producer, topic_of(), 1)
            sending = asyncio.ensure_future(producer.send(b"x"))
            if end == "cancel":
                opening.cancel()
                await asyncio.wait([opening])
                assert opening.cancelled()
                with pytest.raises(TopicUnavailable):
                    await sending
            else:
                try:
                    await asyncio.wait_for((producer if end == "producer" else other).close(), PATIENCE_S)
                finally:
                    asyncio.get_running_loop().call_soon(opening.cancel)
                for call in (opening, sending):
                    with pytest.raises((ClientClosed, TopicUnavailable)):
                        await call
        await eventually(lambda: not topic_of()._producers._waiting)
        assert len(topic_of().producers) == 1
    assert await stored(client) == []


async def test_one_that_waits_keeps_its_place_over_the_time_of_an_operation(door: GrpcServer, topic_of: Any) -> None:
    async with AsyncClient(f"127.0.0.1:{door.port}", operation_timeout_s=0.3) as client:
        first = await client.producer("t", access="exclusive")
        opening = await waiting(client.producer("t", access="wait_for_exclusive"), topic_of(), 1)
        (place,) = topic_of()._producers._waiting
        await asyncio.sleep(0.6)
        assert list(topic_of()._producers._waiting) == [place]
        await first.close()
        await asyncio.wait_for(opening, PATIENCE_S)


async def test_one_that_fences_takes_the_place_of_all_others(client: AsyncClient, topic_of: Any) -> None:
    former = await client.producer("t", access="exclusive", name="former")
    await former.send(b"1")
    opening = await waiting(client.producer("t", access="wait_for_exclusive"), topic_of(), 1)
    async with client.producer("t", access="exclusive_with_fencing") as latter:
        with pytest.raises(ProducerFenced, match="Fenced out by a later exclusive producer"):
            await opening
        for _ in range(2):
            with pytest.raises(ProducerFenced, match="epoch 0 is outdated: the present one is 1; another producer has"):
                await former.send(b"of the fenced one")
        await latter.send(b"2")
        last = await client.producer("t", access="exclusive_with_fencing")
        await last.send(b"3")
        with pytest.raises(ProducerFenced):
            await latter.send_many([b"of the second fenced one"] * 3)
        await last.send(b"4")
    await former.close()
    assert await stored(client) == [b"1", b"2", b"3", b"4"]


async def test_one_that_shares_is_fenced_out_and_comes_back(client: AsyncClient, topic_of: Any) -> None:
    shared = client.producer("t", send_timeout_s=0.5)
    patient = client.producer("t", name="patient")
    await shared.send(b"1")
    await patient.send(b"2")
    async with client.producer("t", access="exclusive_with_fencing") as alone:
        await alone.send(b"3")
        sending = asyncio.ensure_future(patient.send(b"4"))
        with pytest.raises(TopicUnavailable, match=r"not acknowledged .*Not connected: .*existing exclusive producer"):
            await shared.send(b"too early")
        assert not sending.done()
    await sending
    await shared.send(b"5")
    assert await stored(client) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("access", ["exclusive", "wait_for_exclusive", "exclusive_with_fencing"])
@pytest.mark.parametrize("name", ["", "named"])
async def test_a_broken_connection_does_not_end_exclusive_access(
    client: AsyncClient, world: BrokerInMemory, door: GrpcServer, topic_of: Any, access: ProducerAccess, name: str
) -> None:
    producer = await client.producer("t", access=access, name=name)
    await producer.send(b"1")
    for number in range(2, 5):
        (call,) = door._publisher._calls
        call.stream.end(CLOSED)
        await producer.send(b"%d" % number)
    assert topic_of()._producers.epoch == 0
    await world.broker.opening.unload(TopicName.parse("t"))
    await producer.send(b"5")
    assert topic_of()._producers.epoch == 0
    assert await stored(client) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("access", ["exclusive", "wait_for_exclusive", "exclusive_with_fencing"])
@pytest.mark.parametrize("name", ["", "named"])
async def test_its_own_former_call_is_not_in_its_way(
    client: AsyncClient, topic_of: Any, access: ProducerAccess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call whose client has gone without a word is there for some time. Who waits is not next meanwhile."""
    producer = await client.producer("t", access=access, name=name)
    opening = await waiting(client.producer("t", access="wait_for_exclusive"), topic_of(), 1)
    (stream,) = producer._streams
    assert stream._opening.topic_epoch == 0
    monkeypatch.setattr(stream, "_attempt", asyncio.Event().wait)
    again = PublishStream(client._brokers, stream.topic, stream._opening, 5.0)
    await again.open()
    (former,) = [one for one in topic_of().producers.values() if not one.is_waiting]
    assert former is topic_of()._producers._access.holder
    assert (topic_of()._producers.epoch, opening.done()) == (0, False)
    await again.submit([api.Message(payload=b"x")], None)
    await again.close()
    await asyncio.wait_for(opening, PATIENCE_S)


async def test_one_that_lost_it_meanwhile_is_fenced_out(client: AsyncClient, door: GrpcServer, topic_of: Any) -> None:
    """Its connection breaks while another one waits, which gets the access. What the first has not stored fails."""
    producer = await client.producer("t", access="wait_for_exclusive")
    await producer.send(b"1")
    other = client.producer("t", access="wait_for_exclusive")
    opening = await waiting(other, topic_of(), 1)
    for call in list(door._publisher._calls):
        if call.epoch is not None:
            call.stream.end(CLOSED)
    await asyncio.wait_for(opening, PATIENCE_S)
    with pytest.raises(ProducerFenced):
        await producer.send(b"too late")
    await other.send(b"2")
    assert await stored(client) == [b"1", b"2"]


async def test_one_that_wrote_before_does_not_wait_behind_another(client: AsyncClient, topic_of: Any) -> None:
    """It would write again when others had written, and not know of it."""
    holder = await client.producer("t", access="exclusive")
    opening = api.PublishRequest.Open(
        topic="t", access=api.PublishRequest.WAIT_FOR_EXCLUSIVE, topic_epoch=topic_of()._producers.epoch + 1
    )
    with pytest.raises(ProducerFenced, match="another producer has exclusive access now, or is next"):
        await asyncio.wait_for(
            PublishStream(client._brokers, "persistent://public/default/t", opening, 5.0).open(), PATIENCE_S
        )
    assert len(topic_of().producers) == 1
    await holder.send(b"x")


async def test_those_that_wait_wait_anew_when_the_topic_moves(
    client: AsyncClient, world: BrokerInMemory, topic_of: Any
) -> None:
    producer = await client.producer("t", access="exclusive")
    await producer.send(b"1")
    other = client.producer("t", access="wait_for_exclusive")
    opening = await waiting(other, topic_of(), 1)
    async with topic_of()._producers.admission:  # the first is back before the other one
        pass
    await world.broker.opening.unload(TopicName.parse("t"))
    try:
        await asyncio.wait_for(producer.send(b"2"), PATIENCE_S)
    except ProducerFenced:  # the other one was faster, as it may be
        await asyncio.wait_for(opening, PATIENCE_S)
        assert await stored(client) == [b"1"]
        return
    await producer.close()
    await asyncio.wait_for(opening, PATIENCE_S)
    await other.send(b"3")
    assert await stored(client) == [b"1", b"2", b"3"]


async def test_the_epoch_survives_the_broker(client: AsyncClient, world: BrokerInMemory, topic_of: Any) -> None:
    await client.producer("t", access="exclusive").send(b"1")
    await client.producer("t", access="exclusive_with_fencing").send(b"2")
    await world.broker.opening.unload(TopicName.parse("t"))
    await world.broker.opening.persistent(TopicName.parse("t"), create=False)
    assert topic_of()._producers.epoch == 1


async def test_producers_of_one_client_do_not_share_exclusive_access(client: AsyncClient) -> None:
    one, other = (client.producer("t", access="exclusive") for _ in range(2))
    assert one.sender is not other.sender
    shared, too = (client.producer("t") for _ in range(2))
    assert shared.sender is too.sender


async def test_all_partitions_are_of_one_producer(client: AsyncClient, topic_of: Any) -> None:
    await client.topics.create("p", partitions=4)
    first = await client.producer("p", access="wait_for_exclusive")
    others = [client.producer("p", access="wait_for_exclusive") for _ in range(3)]
    openings = [asyncio.ensure_future(one.open()) for one in others]
    await eventually(lambda: len(topic_of("p-partition-0")._producers._waiting) == 3)
    assert not topic_of("p-partition-1")._producers._waiting, "each waits for one partition, the same"
    await first.close()
    for _ in range(3):
        done, _ = await asyncio.wait(openings, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        (ended,) = done
        one = others.pop(openings.index(ended))
        openings.remove(ended)
        await one.send_many([b"x"] * 4)
        assert not any(opening.done() for opening in openings)
        await one.close()


async def test_who_is_fenced_out_of_one_partition_gives_up_all(client: AsyncClient, topic_of: Any) -> None:
    await client.topics.create("p", partitions=3)
    producer = await client.producer("p", access="exclusive")
    opening = asyncio.ensure_future(client.producer("p", access="wait_for_exclusive").open())
    await eventually(lambda: topic_of("p-partition-0")._producers._waiting)
    async with client.producer("p-partition-1", access="exclusive_with_fencing") as latter:
        await asyncio.wait_for(eventually(lambda: not topic_of("p-partition-2").producers), PATIENCE_S)
        for _ in range(6):
            with pytest.raises(ProducerFenced):
                await producer.send(b"x")
        await latter.send(b"of the one that fenced")
    await asyncio.wait_for(opening, PATIENCE_S)
    await producer.close()


async def test_new_partitions_are_exclusive_too(client: AsyncClient, world: BrokerInMemory, topic_of: Any) -> None:
    await client.topics.create("p", partitions=1)
    producer = await client.producer("p", access="exclusive")
    await world.broker.partitioned.grow(TopicName.parse("p"), 2)
    await eventually(lambda: len(producer._streams) == 2)
    with pytest.raises(ProducerFenced):
        await client.producer("p-partition-1", access="exclusive").open()
    await producer.close()
    assert not topic_of("p-partition-1").producers


async def test_a_call_that_waits_and_is_ended_by_the_broker_comes_back(
    client: AsyncClient, door: GrpcServer, topic_of: Any
) -> None:
    async with client.producer("t", access="exclusive"):
        opening = await waiting(client.producer("t", access="wait_for_exclusive"), topic_of(), 1)
        (call,) = [one for one in door._publisher._calls if one.writer.producer.is_waiting]
        call.stream.end(CLOSED)  # as where a permission was taken back, or the broker stops
        await eventually(lambda: [one for one in door._publisher._calls if one is not call and one.epoch is None])
        assert call not in door._publisher._calls
        await eventually(lambda: len(topic_of()._producers._waiting) == 1)
        opening.cancel()


async def test_access_that_is_given_while_the_client_is_told_to_wait(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await client.producer("t", access="exclusive")
    tell = _Call.send_opened

    async def slowly(call: _Call) -> None:
        write = call._call.write

        async def write_slowly(answer: api.PublishResponse) -> None:
            await write(answer)
            if answer.opened.is_waiting:
                await first.close()
                await eventually(lambda: not call.writer.producer.is_waiting)

        real, call._call = call._call, SimpleNamespace(write=write_slowly)
        await tell(call)
        call._call = real

    monkeypatch.setattr(_Call, "send_opened", slowly)
    second = client.producer("t", access="wait_for_exclusive")
    await asyncio.wait_for(second.open(), PATIENCE_S)
    await second.send(b"x")


async def test_a_broker_that_knows_nothing_of_access_is_not_believed(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes over what it does not know, and gives access that is shared."""
    real = _Call._opened

    def of_before(call: _Call) -> api.PublishResponse.Opened:
        made = real(call)
        made.ClearField("topic_epoch")
        return made

    monkeypatch.setattr(_Call, "_opened", of_before)
    with pytest.raises(TopicError, match="its broker knows no exclusive access; leave access= out, or update"):
        await client.producer("t", access="exclusive").open()
    await client.producer("t").open()


async def test_an_access_that_there_is_not_is_refused_by_the_broker(client: AsyncClient) -> None:
    opening = api.PublishRequest.Open(topic="t")
    opening.access = 9  # type: ignore[assignment]
    with pytest.raises(TopicError, match="there is no access 9"):
        await PublishStream(client._brokers, "t", opening, 5.0).open()


async def test_the_blocking_client_waits_and_stops_waiting(door: GrpcServer, topic_of: Any) -> None:
    def scenario() -> None:
        with magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as client:
            first = client.producer("t", access="exclusive").open()
            other = client.producer("t", access="wait_for_exclusive")
            began_s = time.monotonic()
            with pytest.raises(TopicUnavailable, match=r"not open within 0\.2 s"):
                other.open(timeout_s=0.2)
            assert time.monotonic() - began_s < PATIENCE_S
            sent = other.send_async(b"2")
            first.send(b"1")
            first.close()
            sent.result(PATIENCE_S)

    await asyncio.to_thread(scenario)

    def leave() -> None:
        """Messages that wait do not hold up the close of their producer, or of the client."""
        with magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as client:
            client.producer("t", access="exclusive").open()
            began_s = time.monotonic()
            sent = []
            for _ in range(2):
                waiting = client.producer("t", access="wait_for_exclusive")
                sent += [waiting.send_async(b"x"), waiting.send_async(b"y")]
                time.sleep(0.1)
            waiting.close()
        assert time.monotonic() - began_s < PATIENCE_S
        for future in sent:
            assert isinstance(future.exception(), ClientClosed)

    await asyncio.to_thread(leave)

    closed = magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30)
    holder = closed.producer("t", access="exclusive_with_fencing")

    def wait() -> None:
        holder.open()
        closed.producer("t", access="wait_for_exclusive").open()

    waits = asyncio.ensure_future(asyncio.to_thread(wait))
    await eventually(lambda: topic_of()._producers._waiting)
    await asyncio.to_thread(closed.close)
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(waits, PATIENCE_S)
