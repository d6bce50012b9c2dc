"""WatchTopics: the topics of a namespace, and what comes and goes."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from broker.binary import listing
from broker.binary.listing import filter_topics
from broker.errors import NotAuthorized
from broker.grpc import topic_watches
from broker.grpc.service import SERVICE, GrpcServer
from broker.grpc.topic_watches import _Watch, answers
from broker.security.authorization import Operation
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory

START = "persistent://public/default/"


@pytest.fixture
async def channel(door: GrpcServer) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as made:
        yield made


def watch(channel: Any, pattern: str = "", namespace: str = "") -> Any:
    """As clients of other languages call it, who send one request and no more."""
    method = channel.unary_stream(
        f"/{SERVICE}/WatchTopics", api.WatchTopicsRequest.SerializeToString, api.WatchTopicsResponse.FromString
    )
    return method(api.WatchTopicsRequest(namespace=namespace, pattern=pattern))


async def read(call: Any) -> tuple[list[str], list[str]]:
    answer = await asyncio.wait_for(call.read(), 10)
    assert answer is not grpc.aio.EOF, await call.details()
    return ([name.removeprefix(START) for name in answer.new_topics],
            [name.removeprefix(START) for name in answer.deleted_topics])  # fmt: skip


async def make(world: BrokerInMemory, *names: str) -> None:
    for name in names:
        await world.broker.opening.create_topic(TopicName.parse(name))


async def status(call: Any) -> tuple[str, str]:
    return (await asyncio.wait_for(call.code(), 10)).name, await call.details()


async def test_the_whole_list_comes_first_then_what_has_changed(world: BrokerInMemory, channel: Any) -> None:
    await make(world, "a-1", "b-1")
    some, every = watch(channel, "public/default/a-.*"), watch(channel, r"public/default/[ab].+", "public/default")
    assert await read(some) == (["a-1"], [])
    assert await read(every) == (["a-1", "b-1"], []), "it is not evaluated here"
    await make(world, "b-2", "a-2")
    assert await read(some) == (["a-2"], [])
    assert await read(every) == (["a-2", "b-2"], [])
    await world.broker.deleting.delete_topic(TopicName.parse("b-1"), force=False)
    assert await read(every) == ([], ["b-1"])
    await world.broker.deleting.delete_topic(TopicName.parse("a-1"), force=False)
    assert await read(some) == ([], ["a-1"]), "what does not match is not told"
    assert world.broker.watched_names.total == 1 + 2
    for call in (some, every):
        call.cancel()
    await eventually(lambda: not world.broker._topic_lists._watched)
    assert world.broker.watched_names.total == 0


async def test_an_empty_list_is_told_too(world: BrokerInMemory, channel: Any) -> None:
    call = watch(channel)
    assert await read(call) == ([], [])
    await make(world, "a")
    assert await read(call) == (["a"], [])


def test_one_that_does_not_read_is_told_of_all_at_once() -> None:
    one = _Watch("public/default", None)
    one.on_topics(["a", "b"])
    one.on_topics(["b", "c"])
    assert one.latest == ["b", "c"]
    assert one.update(one.latest) == (["b", "c"], [])
    assert one.update(["c", "d"]) == (["d"], ["b"])


def test_what_is_too_long_goes_in_several_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watches, "ANSWER_BYTES_MAX", 40)
    names = ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "ccc", "ü" * 8, "d" * 60]
    for new, deleted in ((names, []), ([], names), (names[:2], names[2:]), (names[:3], names[3:])):
        parts = list(answers(new, deleted))
        assert [part.more for part in parts] == [True, True, False]
        assert all(part.ByteSize() <= 42 for part in parts[:2])
        assert [name for part in parts for name in part.new_topics] == new
        assert [name for part in parts for name in part.deleted_topics] == deleted
    assert list(answers(names[:2], ())) == [api.WatchTopicsResponse(new_topics=names[:2])]
    assert list(answers((), ())) == [api.WatchTopicsResponse()], "that there are none is said, too"


async def test_answers_fit_what_clients_take(
    world: BrokerInMemory, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This channel has the limit of gRPC: 4 MiB."""
    topics = [f"{START}orders-{number:0180}" for number in range(25_000)]

    async def watch_topics(namespace: str, changed: Any) -> Any:
        return topics, lambda: None

    monkeypatch.setattr(world.broker, "watch_topics", watch_topics)
    call = watch(channel, "public/default/orders-.*")
    names = list[str]()
    more = True
    while more:
        answer = await asyncio.wait_for(call.read(), 10)
        assert answer is not grpc.aio.EOF, await call.details()
        names += answer.new_topics
        more = answer.more
    assert names == topics


async def test_a_change_is_looked_through_once_for_all_that_watch_the_same(
    world: BrokerInMemory, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns = list[str]()

    def filtered(topics: Any, pattern: str, characters_max: int) -> Any:
        patterns.append(pattern)
        return filter_topics(topics, pattern, characters_max)

    a, b = "public/default/a.*", "public/default/b.*"
    calls = [watch(channel, pattern) for pattern in (a, a, a, b)]
    for call in calls:
        assert await read(call) == ([], [])
    monkeypatch.setattr(listing, "filter_topics", filtered)
    await make(world, "a-1", "b-1")
    assert [await read(call) for call in calls] == [(["a-1"], []), (["a-1"], []), (["a-1"], []), (["b-1"], [])]
    assert sorted(patterns) == [a, b]
    calls[0].cancel()
    await world.broker.deleting.delete_topic(TopicName.parse("a-1"), force=False)
    assert [await read(call) for call in calls[1:3]] == [([], ["a-1"])] * 2
    for call in calls:
        call.cancel()
    await eventually(lambda: not world.broker._topic_lists._watched)
    gc.collect()
    assert not world.broker.watched_names._matching, "what nobody watches is forgotten"


async def test_who_may_not_list_the_namespace_any_more_is_told_nothing(
    world: BrokerInMemory, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = watch(channel)
    assert await read(call) == ([], [])
    asked: list[Operation] = []

    async def check(caller: Any, need: Any) -> None:
        asked.append(need.operation)
        raise NotAuthorized("you may not list it")

    monkeypatch.setattr(world.broker.access, "check", check)
    world.broker._topic_lists._on_change("public/default")
    code, text = await status(call)
    assert (code, asked) == ("PERMISSION_DENIED", [Operation.GET_TOPICS])
    assert "you may not list it; ask an administrator" in text
    assert (await status(watch(channel)))[0] == "PERMISSION_DENIED"


async def test_so_many_names_are_watched(world: BrokerInMemory, channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await make(world, "a", "b")
    monkeypatch.setattr(topic_watches, "NAMES_ALL_MAX", 3)
    first = watch(channel)
    await read(first)
    code, text = await status(watch(channel))
    assert (code, world.broker.watched_names.total) == ("RESOURCE_EXHAUSTED", 2)
    assert "have 3 names already" in text
    await make(world, "c", "d")
    assert await read(first) == (["c", "d"], []), "one that is there goes on"


@pytest.mark.parametrize(("namespace", "code"), [("nobody/nowhere", "NOT_FOUND"), ("no namespace", "INVALID_ARGUMENT")])
async def test_a_namespace_that_cannot_be_listed(channel: Any, namespace: str, code: str) -> None:
    assert (await status(watch(channel, "", namespace)))[0] == code


async def test_a_broker_that_stops_ends_the_calls(world: BrokerInMemory, door: GrpcServer, channel: Any) -> None:
    call = watch(channel)
    await read(call)
    await door.stop()
    assert (await status(call))[0] == "UNAVAILABLE"
    assert world.broker.watched_names.total == 0


async def test_a_consumer_may_want_only_what_exists(world: BrokerInMemory, channel: Any) -> None:
    async def consume(topic: str) -> Any:
        opening = api.ConsumeRequest.Open(topic=topic, subscription="s", must_exist=True)
        method = channel.stream_stream(
            f"/{SERVICE}/Consume", api.ConsumeRequest.SerializeToString, api.ConsumeResponse.FromString
        )
        call = method()
        await call.write(api.ConsumeRequest(open=opening))
        return call

    assert (await status(await consume("not-there")))[0] == "NOT_FOUND"
    assert not world.broker.topics
    await make(world, "there")
    assert (await (await consume("there")).read()).HasField("opened")
