"""Each call of the topic API, and each request of a stream, is answered or ended, whatever happens to its topic."""

import asyncio
import contextlib
from typing import Any, Final

import grpc
import pytest

from broker.grpc.service import SERVICE, GrpcServer
from magnetar.client.brokers import _STATUS_LOST
from magnetar_core.topics import topics_pb2 as api
from tests.support.waiting import settle
from tests.unit.broker.binary.test_each_request import NAME, TOPIC, happens, silent
from tests.unit.broker.conftest import BrokerInMemory

ID: Final = api.MessageId(ledger_id=1, entry_id=0)
ANSWER_S: Final = 5.0

CALLS: Final[dict[str, tuple[Any, Any]]] = {
    "Lookup": (api.LookupRequest(topic=TOPIC), api.LookupResponse),
    "GetTopic": (api.GetTopicRequest(topic=TOPIC, create=True), api.GetTopicResponse),
    "GetLastMessageId": (api.GetLastMessageIdRequest(topic=TOPIC), api.GetLastMessageIdResponse),
    "CreateTopic": (api.CreateTopicRequest(topic=TOPIC), api.CreateTopicResponse),
    "DeleteTopic": (api.DeleteTopicRequest(topic=TOPIC, force=True), api.DeleteTopicResponse),
    "ListBrokers": (api.ListBrokersRequest(), api.ListBrokersResponse),
    "ListTopics": (api.ListTopicsRequest(), api.ListTopicsResponse),
    "GetTopicStats": (api.GetTopicStatsRequest(topic=TOPIC), api.GetTopicStatsResponse),
    "GetSchema": (api.GetSchemaRequest(topic=TOPIC), api.GetSchemaResponse),
}

CONSUMING: Final = {
    "acks": api.ConsumeRequest(acks=[ID]),
    "a run": api.ConsumeRequest(ack_runs=[api.ConsumeRequest.Run(first=ID, last=0)]),
    "cumulative ack": api.ConsumeRequest(cumulative_ack=ID),
    "nack": api.ConsumeRequest(nack=api.ConsumeRequest.Nack(ids=[ID])),
    "seek": api.ConsumeRequest(seek=api.ConsumeRequest.Seek(id=ID)),
    "seek to a time": api.ConsumeRequest(seek=api.ConsumeRequest.Seek(time_ms=1)),
    "permits": api.ConsumeRequest(permits=10),
    "unsubscribe": api.ConsumeRequest(unsubscribe=True),
    "leaving": api.ConsumeRequest(leaving=True),
    "nothing": api.ConsumeRequest(),
}

EVENTS: Final = ["unload", "takeover", "delete"]


def test_no_call_is_left_out() -> None:
    methods = {one.name for one in api.DESCRIPTOR.services_by_name["Topics"].methods}
    assert methods == CALLS.keys() | {"Publish", "Consume", "WatchTopics"}
    fields = {one.name for one in api.ConsumeRequest.DESCRIPTOR.fields} - {"open", "request_id"}
    assert {field.name for one in CONSUMING.values() for field, _ in one.ListFields()} == fields


class Door:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def call(self, method: str) -> Any:
        request, answer = CALLS[method]
        return self._channel.unary_unary(f"/{SERVICE}/{method}", type(request).SerializeToString, answer.FromString)(
            request
        )

    async def consume(self) -> Any:
        opening = api.ConsumeRequest.Open(topic=TOPIC, subscription="s", from_earliest=True)
        return await self._opened("Consume", api.ConsumeRequest(open=opening), api.ConsumeResponse)

    async def publish(self, name: str = "", access: api.PublishRequest.Access = api.PublishRequest.SHARED) -> Any:
        opening = api.PublishRequest.Open(topic=TOPIC, producer_name=name, access=access)
        return await self._opened("Publish", api.PublishRequest(open=opening), api.PublishResponse)

    async def watch(self) -> Any:
        method = self._channel.unary_stream(
            f"/{SERVICE}/WatchTopics", api.WatchTopicsRequest.SerializeToString, api.WatchTopicsResponse.FromString
        )
        return method(api.WatchTopicsRequest())

    async def _opened(self, method: str, request: Any, answer: Any) -> Any:
        stream = self._channel.stream_stream(f"/{SERVICE}/{method}", type(request).SerializeToString, answer.FromString)
        call = stream()
        await call.write(request)
        assert (await call.read()).HasField("opened")
        return call


async def ended(call: Any) -> grpc.StatusCode:
    """The status with which a stream ends; what it brings before that is passed over."""
    async with asyncio.timeout(ANSWER_S):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await call.code()


@pytest.fixture
async def at_door(world: BrokerInMemory, door: GrpcServer) -> Any:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        made = Door(channel)
        call = await made.publish("me")
        await call.write(api.PublishRequest(messages=[api.Message(payload=b"0")]))
        assert (await call.read()).receipts
        await call.done_writing()
        assert await ended(call) is grpc.StatusCode.OK
        yield made


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("method", CALLS)
async def test_each_call_has_an_end(world: BrokerInMemory, at_door: Door, method: str, event: str) -> None:
    with silent(world):
        call = at_door.call(method)
        await settle(10)
        happening = asyncio.create_task(happens(world, event))
        await settle(10)
    async with asyncio.timeout(ANSWER_S):
        code = await call.code()
        await asyncio.gather(happening, return_exceptions=True)  # it may have been deleted by the call
    assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), await call.details()


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("request_", CONSUMING)
async def test_each_request_of_a_consumer_is_answered_or_its_call_ends(
    world: BrokerInMemory, at_door: Door, request_: str, when: str, event: str
) -> None:
    call = await at_door.consume()
    request = api.ConsumeRequest()
    request.CopyFrom(CONSUMING[request_])
    request.request_id = 7
    with silent(world):
        if when == "before":
            await call.write(request)
            await settle(10)
        happening = asyncio.create_task(happens(world, event))
        await settle(10)
        if when == "meanwhile":
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the call may be over
                await call.write(request)
            await settle(10)
    await happening
    # What gRPC's asyncio client says of a call that ended while it was written to counts as the first.
    is_lost = await ended(call) is grpc.StatusCode.INTERNAL and await call.details() == _STATUS_LOST
    assert is_lost or await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK)
    topic = world.broker.topics.get(NAME)
    assert topic is None or not topic.is_in_use


@pytest.mark.parametrize("event", EVENTS)
async def test_a_producer_that_waits_for_access_has_its_call_ended(
    world: BrokerInMemory, at_door: Door, event: str
) -> None:
    holder = await at_door.publish(access=api.PublishRequest.EXCLUSIVE)
    call = await at_door.publish(access=api.PublishRequest.WAIT_FOR_EXCLUSIVE)
    topic = world.broker.topics[NAME]
    assert topic._producers._waiting
    with silent(world):
        happening = asyncio.create_task(happens(world, event))
        await settle(10)
    await happening
    assert await ended(call) is grpc.StatusCode.UNAVAILABLE
    assert await ended(holder) is grpc.StatusCode.UNAVAILABLE
    assert not topic._producers._waiting


@pytest.mark.parametrize("event", EVENTS)
async def test_who_watches_topics_hears_of_those_that_go(world: BrokerInMemory, at_door: Door, event: str) -> None:
    call = await at_door.watch()
    assert TOPIC in (await call.read()).new_topics
    await happens(world, event)
    if event == "delete":
        async with asyncio.timeout(ANSWER_S):
            assert list((await call.read()).deleted_topics) == [TOPIC]
    assert not call.done()
    call.cancel()


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("name", ["", "me"])
async def test_a_producer_whose_topic_goes_has_its_messages_answered_or_its_call_ended(
    world: BrokerInMemory, at_door: Door, name: str, event: str
) -> None:
    call = await at_door.publish(name)
    with silent(world):
        await call.write(api.PublishRequest(messages=[api.Message(payload=b"1")]))
        await settle(10)
        happening = asyncio.create_task(happens(world, event))
        await settle(10)
    await happening
    assert await ended(call) is grpc.StatusCode.UNAVAILABLE
    if event == "unload":  # the next call of the name is not in the way of the former one
        again = await at_door.publish(name)
        await again.write(api.PublishRequest(first_sequence_id=1, messages=[api.Message(payload=b"1")]))
        async with asyncio.timeout(ANSWER_S):
            assert (await again.read()).receipts
        again.cancel()
