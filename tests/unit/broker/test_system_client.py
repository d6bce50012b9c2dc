"""The client for the brokers' own topics, against a broker that answers as it is told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import broker.system_client
from broker.system_client import REDIRECTS_MAX, Dialed, Refused, SystemClient, SystemClientError
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command, parse_frame, payload_frame
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata
from managed_ledger.position import Position

TOPIC = TopicName.parse("persistent://t/n/__x")
SCHEMA = wire.Schema(name="x", schema_data=b"{}", type=wire.Schema.Json)
OWN = "pulsar://own:1"

Answers = Callable[[BaseCommand], list[bytes]]

HERE = command(
    BaseCommand.LOOKUP_RESPONSE,
    request_id=1,
    brokerServiceUrl=OWN,
    response=wire.CommandLookupTopicResponse.Connect,
    authoritative=True,
)


@asynccontextmanager
async def broker_that(answers: Answers) -> AsyncIterator[tuple[SystemClient, list[str]]]:
    """A client whose every connection meets *answers*; the URLs that it dialled."""
    dialled: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = FrameSplitter(2**30)
        while data := await reader.read(1 << 16):
            for frame in splitter.feed(data):
                made = parse_frame(frame)[0]
                if made.type == BaseCommand.CONNECT:
                    writer.write(command(BaseCommand.CONNECTED, server_version="x"))
                else:
                    writer.writelines(answers(made))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)

    async def dial(url: str) -> Dialed:
        dialled.append(url)
        if url == "pulsar://nobody:1":
            raise ConnectionRefusedError("nobody is there")
        return Dialed(*await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1]))

    try:
        yield SystemClient(dial, lambda: (OWN, ""), lambda: 5, 1 << 20, prefers_tls=lambda: False), dialled
    finally:
        server.close()


async def publish(client: SystemClient) -> Position:
    return await client.publish(TOPIC, SCHEMA, MessageMetadata(partition_key="k"), b"v")


def storing(made: BaseCommand) -> list[bytes]:
    if made.type == BaseCommand.LOOKUP:
        return [HERE]
    if made.type == BaseCommand.PRODUCER:
        success = {"producer_name": "p", "last_sequence_id": -1, "schema_version": b"v"}
        return [command(BaseCommand.PING), command(BaseCommand.PRODUCER_SUCCESS, request_id=1, **success)]
    if made.type == BaseCommand.SEND:
        where = MessageIdData(ledgerId=3, entryId=4)
        return [command(BaseCommand.SEND_RECEIPT, producer_id=1, sequence_id=0, message_id=where)]
    return []


async def test_a_message_is_stored_and_where_it_is_told() -> None:
    async with broker_that(storing) as (client, dialled):
        assert await publish(client) == Position(3, 4)
    assert dialled == ["", ""]


async def test_a_lookup_is_followed_to_the_owner() -> None:
    def elsewhere(made: BaseCommand) -> list[bytes]:
        if made.type != BaseCommand.LOOKUP:
            return storing(made)
        kinds = wire.CommandLookupTopicResponse
        last = made.lookupTopic.authoritative
        return [
            command(
                BaseCommand.LOOKUP_RESPONSE,
                request_id=1,
                brokerServiceUrl="pulsar://owner:1" if last else "pulsar://leader:1",
                response=kinds.Connect if last else kinds.Redirect,
                authoritative=True,
            )
        ]

    async with broker_that(elsewhere) as (client, dialled):
        assert await publish(client) == Position(3, 4)
    assert dialled == ["", "pulsar://leader:1", "pulsar://owner:1"]


async def test_a_lookup_that_is_sent_in_a_circle_ends() -> None:
    def onwards(made: BaseCommand) -> list[bytes]:
        return [
            command(
                BaseCommand.LOOKUP_RESPONSE,
                request_id=1,
                brokerServiceUrl="pulsar://other:1",
                response=wire.CommandLookupTopicResponse.Redirect,
            )
        ]

    async with broker_that(onwards) as (client, dialled):
        with pytest.raises(SystemClientError, match="found no broker"):
            await publish(client)
    assert len(dialled) == REDIRECTS_MAX


def failing_with(kind: int, answer: bytes) -> Answers:
    return lambda made: [answer] if made.type == kind else storing(made)


LOST = command(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=1)
ERROR = command(BaseCommand.ERROR, request_id=1, error=wire.MetadataError, message="no store")
SEND_ERROR = command(
    BaseCommand.SEND_ERROR, producer_id=1, sequence_id=0, error=wire.PersistenceError, message="no bookies"
)
NOWHERE = command(
    BaseCommand.LOOKUP_RESPONSE,
    request_id=1,
    response=wire.CommandLookupTopicResponse.Failed,
    error=wire.ServiceNotReady,
    message="not yet",
)
NOBODY = command(
    BaseCommand.LOOKUP_RESPONSE,
    request_id=1,
    brokerServiceUrl="pulsar://nobody:1",
    response=wire.CommandLookupTopicResponse.Connect,
)


@pytest.mark.parametrize(
    ("answers", "kind", "words"),
    [
        (failing_with(BaseCommand.LOOKUP, NOWHERE), Refused, "not yet"),
        (failing_with(BaseCommand.LOOKUP, NOBODY), SystemClientError, "nobody is there"),
        (failing_with(BaseCommand.PRODUCER, ERROR), Refused, "no store"),
        (failing_with(BaseCommand.SEND, SEND_ERROR), Refused, "no bookies"),
        (failing_with(BaseCommand.SEND, LOST), SystemClientError, "given the topic away"),
        (failing_with(BaseCommand.SEND, HERE), SystemClientError, "LOOKUP_RESPONSE"),
        (failing_with(BaseCommand.SEND, b"\xff\xff\xff\xff"), SystemClientError, "not a frame"),
        (failing_with(BaseCommand.SEND, b"\x00\x00\x00\x05\x00\x00\x00\x01\xff"), SystemClientError, "sent"),
    ],
)
async def test_what_goes_wrong_is_told_and_ends(answers: Answers, kind: type[Exception], words: str) -> None:
    async with broker_that(answers) as (client, _):
        with pytest.raises(kind, match=words):
            await publish(client)


async def test_a_broker_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.system_client, "ANSWER_S", 0.2)
    async with broker_that(failing_with(BaseCommand.SEND, b"")) as (client, _):
        with pytest.raises(SystemClientError, match="does not answer"):
            await publish(client)


async def test_what_is_there_is_told_before_what_comes() -> None:
    def entry(number: int) -> bytes:
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        made = BaseCommand(type=BaseCommand.MESSAGE)
        made.message.consumer_id = 1
        made.message.message_id.CopyFrom(MessageIdData(ledgerId=1, entryId=number))
        return b"".join(bytes(part) for part in payload_frame(made, encode_entry(metadata, b"x")))

    def giving(made: BaseCommand) -> list[bytes]:
        if made.type == BaseCommand.LOOKUP:
            return [HERE]
        if made.type == BaseCommand.SUBSCRIBE:
            brought.append(made.subscribe.schema)
            return [command(BaseCommand.SUCCESS, request_id=made.subscribe.request_id)]
        if made.type == BaseCommand.GET_LAST_MESSAGE_ID:
            last = MessageIdData(ledgerId=1, entryId=1)
            number = made.getLastMessageId.request_id
            return [command(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, request_id=number, last_message_id=last)]
        if made.type == BaseCommand.FLOW and made.flow.messagePermits == broker.system_client.PERMITS:
            return [entry(0), entry(1), entry(2), command(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=9)]
        return []

    told: list[object] = []
    brought: list[wire.Schema] = []

    async def on_entry(position: Position, _: memoryview) -> None:
        told.append(position.entry_id)

    async with broker_that(giving) as (client, _):
        with pytest.raises(SystemClientError, match="given the topic away"):
            await client.follow(TOPIC, SCHEMA, on_entry, lambda: told.append("end"))
    assert told == [0, 1, "end", 2]
    assert brought == [SCHEMA], "who comes later brings it too, and is not refused"
