"""Where a client of the topic API takes its token, and what it makes of a server that answers something else."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from magnetar.client.access import Access
from magnetar.client.async_topics import PARTITIONS_MAX, AsyncTopics, topics_of
from magnetar.client.brokers import SERVICE, Brokers, check_address
from magnetar.client.errors import AccessDenied, TopicError
from magnetar_core.topics import topics_pb2 as api

ELSEWHERE = "b2.example:6648"
TOKEN = Access(token="secret")


class Fake:
    """A server of gRPC that answers each method with given bytes."""

    def __init__(self) -> None:
        self.address = ""
        self.answers: dict[str, bytes] = {}
        self.asked: list[str] = []

    def send_on(self, address: str) -> None:
        self.answers["Lookup"] = api.LookupResponse(address=address).SerializeToString()

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]
        assert details.method == f"/{SERVICE}/{method}"
        self.asked.append(method)
        if method not in self.answers:
            return None

        async def answer(_: bytes, context: Any) -> bytes:
            return self.answers[method]

        async def answers(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for _ in requests:
                yield self.answers[method]
                return

        if method in ("Publish", "Consume"):
            return grpc.stream_stream_rpc_method_handler(answers)
        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    made = Fake()

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # the library has no types
        def service(self, handler_call_details: Any) -> Any:
            return made.service(handler_call_details)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield made
    await server.stop(None)


@pytest.fixture
async def opened() -> AsyncIterator[list[Brokers]]:
    made: list[Brokers] = []
    yield made
    for one in made:
        await one.close()


def brokers(opened: list[Brokers], addresses: list[str], access: Access) -> Brokers:
    opened.append(Brokers(addresses, 5.0, access))
    return opened[-1]


@pytest.mark.parametrize("listed", [None, [], ["b1.example:6648", "b3.example:6648"]])
async def test_a_token_goes_to_no_host_that_the_cluster_does_not_list(
    fake: Fake, opened: list[Brokers], listed: list[str] | None
) -> None:
    fake.send_on(ELSEWHERE)
    if listed is not None:
        fake.answers["ListBrokers"] = api.ListBrokersResponse(addresses=listed).SerializeToString()
    with pytest.raises(AccessDenied) as caught:
        await brokers(opened, [fake.address], TOKEN).owner("t")
    for part in (fake.address, ELSEWHERE, "trusted_hosts"):
        assert part in str(caught.value)
    assert fake.asked == ["Lookup", "ListBrokers"]


async def test_it_goes_to_those_that_are_listed_given_or_named(fake: Fake, opened: list[Brokers]) -> None:
    fake.send_on(ELSEWHERE)
    for addresses, access in (
        ([fake.address, "b2.example:1"], TOKEN),
        ([fake.address], TOKEN._replace(trusted_hosts=("*.example",))),
        ([fake.address], Access()),
    ):
        assert await brokers(opened, addresses, access).owner("t") == ELSEWHERE
    assert fake.asked == ["Lookup"] * 3, "nothing more is asked for that"
    fake.answers["ListBrokers"] = api.ListBrokersResponse(addresses=[ELSEWHERE]).SerializeToString()
    client = brokers(opened, [fake.address], TOKEN)
    assert [await client.owner("t") for _ in range(2)] == [ELSEWHERE] * 2
    assert fake.asked[3:] == ["Lookup", "ListBrokers", "Lookup"]


async def test_the_same_host_is_the_same_cluster(fake: Fake, opened: list[Brokers]) -> None:
    fake.send_on("localhost:1")
    assert await brokers(opened, [fake.address], TOKEN).owner("t") == "localhost:1"


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x02\xff\xfe", b"", b"HTTP/1.1 400"])
async def test_garbage_names_its_server(fake: Fake, opened: list[Brokers], data: bytes) -> None:
    fake.answers = dict.fromkeys(("Lookup", "Publish", "GetTopic"), data)
    client = brokers(opened, [fake.address], TOKEN)
    with pytest.raises(TopicError, match=f"{fake.address} answers what no broker says"):
        await client.owner("t")
    fake.send_on(fake.address)
    if data:
        with pytest.raises(TopicError, match=f"{fake.address} answers what no broker says"):
            await client.ask_owner("t", "GetTopic", api.GetTopicRequest(topic="t"), api.GetTopicResponse)
        with pytest.raises(TopicError, match=f"{fake.address} answers what no broker says"):
            await client.open("t", "Publish", api.PublishRequest(), api.PublishRequest, api.PublishResponse)


@pytest.mark.parametrize(
    "address",
    [
        "localhost:elsewhere.example:80", "127.0.0.1:1,elsewhere.example:80", "ipv4:127.0.0.1:80", "unix:/tmp/x:1",
        "dns:localhost:1", "elsewhere.example\\@localhost:1", "elsewhere.example#@localhost:1", "localhost:\u0661",
        "localhost:", ":1", "", "local host:1",
    ],
)  # fmt: skip
async def test_an_address_is_a_host_and_a_port_and_nothing_else(
    fake: Fake, opened: list[Brokers], address: str
) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        Brokers([address], 1.0)
    fake.send_on(address)
    with pytest.raises(TopicError, match=f"{fake.address} answers what no broker says"):
        await brokers(opened, [fake.address], TOKEN).owner("t")


@pytest.mark.parametrize("address", ["b1:6648", "b-1.example.org:1", "127.0.0.1:65535", "[::1]:1", "[fe80::1%eth0]:1"])
def test_these_are_addresses(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(("name", "partitions"), [("t", -1), ("t", PARTITIONS_MAX + 1), ("t", 2**31 - 1), ("", 0)])
async def test_a_topic_that_no_broker_has_is_garbage(
    fake: Fake, opened: list[Brokers], name: str, partitions: int
) -> None:
    fake.answers["GetTopic"] = api.GetTopicResponse(topic=name, partitions=partitions).SerializeToString()
    for ask in (topics_of, lambda made, topic: AsyncTopics(made).partitions(topic)):
        with pytest.raises(TopicError, match="the broker that was asked for t answers what no broker says"):
            await ask(brokers(opened, [fake.address], TOKEN), "t")


async def test_statistics_without_an_end_are_garbage(fake: Fake, opened: list[Brokers]) -> None:
    fake.send_on(fake.address)
    fake.answers["GetTopic"] = api.GetTopicResponse(topic="t").SerializeToString()
    fake.answers["GetTopicStats"] = api.GetTopicStatsResponse(json="[" * 100_000).SerializeToString()
    with pytest.raises(TopicError, match="the broker that serves t answers what no broker says"):
        await AsyncTopics(brokers(opened, [fake.address], TOKEN)).stats("t")
