"""Requests of calls that have one: who has them read, and how many at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from broker.grpc import requests
from broker.grpc.requests import AT_ONCE, STRANGERS_AT_ONCE, Requests
from broker.grpc.service import SERVICE, SERVICE_CHARS_MAX, GrpcServer
from broker.grpc.status import Refused, Status
from magnetar_core.topics import topics_pb2 as api
from tests.support.waiting import eventually, take_turns
from tests.unit.broker.grpc.test_service import refused
from tests.unit.broker.test_security import Worlds, worlds

__all__ = ["worlds"]


class Call:
    """One whose request comes when the test says so."""

    def __init__(self) -> None:
        self._request: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.is_being_read = False

    async def read(self) -> Any:
        self.is_being_read = True
        return await self._request

    def send(self, request: Any) -> None:
        self._request.set_result(request)


async def reading(requests: Requests, count: int, source: str | None = None) -> tuple[list[Call], list[Any]]:
    calls = [Call() for _ in range(count)]
    tasks = [
        asyncio.create_task(requests.of_stranger(call) if source is None else requests.of_role(call, source))
        for call in calls
    ]
    await take_turns()
    return calls, tasks


async def test_of_each_role_so_many_are_read_and_the_others_wait_unread() -> None:
    made = Requests()
    calls, tasks = await reading(made, AT_ONCE + 3, "greedy")
    assert [call.is_being_read for call in calls] == [True] * AT_ONCE + [False] * 3
    (other,), (answer,) = await reading(made, 1, "other")
    other.send("request")
    assert await answer == "request"
    for number, call in enumerate(calls):
        call.send(number)
    assert await asyncio.gather(*tasks) == [*range(AT_ONCE + 3)]
    assert made._slots == {}


async def test_strangers_give_way_to_the_next_when_they_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SLOW_S", 0.0)
    made = Requests()
    _, slow = await reading(made, STRANGERS_AT_ONCE)
    (honest,), (answer,) = await reading(made, 1)
    honest.send("request")
    assert await answer == "request"
    with pytest.raises(Refused, match="does not come"):
        await slow[0]
    assert not any(task.done() for task in slow[1:])
    for task in slow[1:]:
        task.cancel()
    await take_turns()
    assert made._strangers == {}


async def test_a_stranger_too_many_is_refused_while_the_others_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SLOW_S", 3600.0)
    made = Requests()
    calls, tasks = await reading(made, STRANGERS_AT_ONCE)
    with pytest.raises(Refused, match="try again") as refusal:
        await made.of_stranger(Call())
    assert refusal.value.code is Status.RESOURCE_EXHAUSTED
    for call in calls:
        call.send("request")
    assert await asyncio.gather(*tasks) == ["request"] * STRANGERS_AT_ONCE


async def test_a_request_that_does_not_come_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUEST_S", 0.0)
    with pytest.raises(Refused, match="does not come"):
        await Requests().of_role(Call(), "role")
    call = Call()
    monkeypatch.setattr(requests, "REQUEST_S", 10.0)
    call.send(grpc.aio.EOF)
    with pytest.raises(Refused, match="needs a request"):
        await Requests().of_stranger(call)


def test_so_many_streams_of_a_role_are_open_and_so_many_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "STREAMS_OF_ROLE_MAX", 4)
    monkeypatch.setattr(requests, "STREAMS_MAX", 6)
    monkeypatch.setattr(requests, "STREAMS_LEFT", 1)
    made = Requests()
    with ExitStack() as open_ones:
        for _ in range(4):
            open_ones.enter_context(made.stream("greedy"))
        with pytest.raises(Refused, match="end some of them") as refusal, made.stream("greedy"):
            pass
        assert refusal.value.code is Status.RESOURCE_EXHAUSTED
        for _ in range(2):
            open_ones.enter_context(made.stream("other"))
        with pytest.raises(Refused, match="6 in all"), made.stream("other"):
            pass
        with made.stream("third"), pytest.raises(Refused), made.stream("third"):
            pass
    with made.stream("greedy"):
        pass
    assert (made._streams, made._streams_open) == ({}, 0)


@pytest.mark.parametrize("method", ["Publish", "Consume"])
async def test_nothing_is_read_of_a_stream_too_many(
    door: GrpcServer, channel: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(requests, "STREAMS_OF_ROLE_MAX", 2)
    method = f"/{SERVICE}/{method}"
    streams = [channel.stream_stream(method, request_serializer=lambda one: one.SerializeToString())() for _ in "ab"]
    await eventually(lambda: door._requests._streams_open == 2)
    third = channel.stream_stream(method, request_serializer=lambda one: one.SerializeToString())()
    assert await third.code() is Status.RESOURCE_EXHAUSTED
    for stream in streams:
        stream.cancel()
    await eventually(lambda: door._requests._streams_open == 0)


def unsent(channel: Any, method: str) -> Any:
    """A call whose request has not come, and will not."""
    return channel.stream_unary(f"/{method}", request_serializer=lambda one: one.SerializeToString())()


@pytest.fixture
async def channel(door: GrpcServer) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as made:
        yield made


async def test_health_is_told_beside_calls_that_do_not_send_their_request(
    door: GrpcServer, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "SLOW_S", 0.0)
    calls = [unsent(channel, "grpc.health.v1.Health/Check") for _ in range(2 * STRANGERS_AT_ONCE)]
    await eventually(lambda: sum(call.done() for call in calls) == STRANGERS_AT_ONCE)
    assert len(door._requests._strangers) == STRANGERS_AT_ONCE
    ask = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await ask(health_pb2.HealthCheckRequest(service=SERVICE))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError, match="256 characters at most"):
        await ask(health_pb2.HealthCheckRequest(service="x" * (SERVICE_CHARS_MAX + 1)))
    for call in calls:
        call.cancel()


@pytest.mark.parametrize(
    "opening",
    [
        api.PublishRequest(open=api.PublishRequest.Open(topic="t")),
        api.ConsumeRequest(open=api.ConsumeRequest.Open(topic="t", subscription="s")),
    ],
    ids=["Publish", "Consume"],
)
async def test_of_streams_that_do_not_say_what_they_are_about_so_many_are_read(
    door: GrpcServer, channel: Any, opening: Any
) -> None:
    """Each of these requests may be as large as any; nobody has asked yet whether the client may do what it wants."""

    def begin(channel: Any) -> Any:
        path = f"/{SERVICE}/{type(opening).__name__.removesuffix('Request')}"
        return channel.stream_stream(path, request_serializer=lambda one: one.SerializeToString())()

    def calls_there() -> list[int]:
        return [len(users) for _, users in door._requests._slots.values()]

    silent = [begin(channel) for _ in range(AT_ONCE)]
    await eventually(lambda: calls_there() == [AT_ONCE])
    late = begin(channel)
    await late.write(opening)
    answer = asyncio.ensure_future(late.read())
    await eventually(lambda: calls_there() == [AT_ONCE + 1])
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}", options) as another:
        beside = begin(another)
        await beside.write(opening)
        assert await beside.read() is not grpc.aio.EOF
        assert not answer.done()
        beside.cancel()
    silent.pop().cancel()
    assert await answer is not grpc.aio.EOF
    await eventually(lambda: calls_there() == [AT_ONCE - 1])
    for call in (late, *silent):
        call.cancel()


async def test_who_is_not_authenticated_is_refused_before_the_request_comes(worlds: Worlds) -> None:
    world = await worlds.open()
    door = GrpcServer(world.broker)
    port = await door.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method in (
                "Lookup",
                "GetTopic",
                "CreateTopic",
                "ListTopics",
                "ListBrokers",
                "GetTopicStats",
                "GetSchema",
                "WatchTopics",
            ):
                code, _ = await refused(unsent(channel, f"{SERVICE}/{method}"))
                assert code == "UNAUTHENTICATED", method
    finally:
        await door.stop()


async def test_calls_of_one_request_are_what_they_were_for_clients(channel: Any) -> None:
    ask = channel.unary_unary(
        f"/{SERVICE}/ListTopics",
        request_serializer=api.ListTopicsRequest.SerializeToString,
        response_deserializer=api.ListTopicsResponse.FromString,
    )
    answers = await asyncio.gather(*(ask(api.ListTopicsRequest()) for _ in range(200)))
    assert {tuple(answer.topics) for answer in answers} == {()}
