"""Copies of topics against brokers that answer as they are told; the whole way: tests/process/test_topic_copies.py."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from broker.system_client import SystemClient, SystemClientError
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command, parse_frame
from magnetar.inspect.access import Access
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.backup import topic_copying
from magnetar.processes.backup.manifest import BackupRefused
from magnetar.processes.backup.topic_copying import (
    AT_ONCE,
    Partition,
    Source,
    client_at,
    export,
    make_ready,
    put_in,
    source_of,
)
from magnetar.processes.backup.topic_format import CopiedSchema, TopicHead, TopicReader, TopicWriter
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from magnetar_core.runtime.types import Buffer
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import Position
from managed_ledger.schemas.stored import version_bytes
from tests.support.http_fake import HttpFake, http_fake

TOPIC = TopicName.parse("persistent://t/n/x")
PATH = "/admin/v2/persistent/t/n/x"
HEAD = TopicHead("0.1.0", 1, "persistent://t/n/source", 0, {}, ())


def entry(number: int = 0, payload: bytes = b"p", **fields: Any) -> bytes:
    known = {"producer_name": "x", "sequence_id": number, "publish_time": 1}
    return encode_entry(MessageMetadata(**{**known, **fields}), payload)


class FakeLink:
    """A connection to a broker that has *stored*; what is pushed is kept."""

    def __init__(self, stored: list[tuple[Position, bytes]], last: Position | None = None) -> None:
        self.stored = stored
        self.last = last or (stored[-1][0] if stored else None)
        self.pushed: list[bytes] = []
        self.sends: list[wire.CommandSend] = []
        self.answered = 0
        self.most_waiting = self.most_bytes = 0
        self.next_position = Position(1, 0)
        self.asked: list[tuple[int, dict[str, Any]]] = []

    async def ask(self, kind: int, **fields: Any) -> wire.BaseCommand:
        self.asked.append((kind, fields))
        answer = wire.BaseCommand(type=wire.BaseCommand.SUCCESS)
        if kind == wire.BaseCommand.GET_SCHEMA:
            answer.getSchemaResponse.error_code = wire.TopicNotFound
        if kind == wire.BaseCommand.PRODUCER:
            answer.producer_success.schema_version = version_bytes(7)
        return answer

    async def subscribe(self, topic: TopicName, schema: object, *, compacted: bool) -> Position | None:
        assert not compacted, "all messages are copied"
        return self.last

    async def message(self) -> tuple[Position, bytes]:
        if not self.stored:
            raise TimeoutError
        return self.stored.pop(0)

    def push(self, send: wire.CommandSend, data: Buffer) -> None:
        self.sends.append(send)
        self.pushed.append(bytes(data))
        waiting = self.pushed[self.answered :]
        self.most_waiting = max(self.most_waiting, len(waiting))
        self.most_bytes = max(self.most_bytes, sum(map(len, waiting)))

    async def receipt(self) -> Position:
        self.answered += 1
        return self.next_position


def client_with(link: FakeLink) -> SystemClient:
    class Fake:
        @asynccontextmanager
        async def link_to(self, topic: TopicName) -> AsyncIterator[FakeLink]:
            yield link

    return cast(SystemClient, Fake())


def at(*numbers: int) -> list[tuple[Position, bytes]]:
    return [(Position(3, number), entry(number)) for number in numbers]


async def exported(
    link: FakeLink, url: str = "http://127.0.0.1:1", ledgers: tuple[tuple[int, int | None], ...] = ((3, None),)
) -> list[bytes]:
    """The entries of the copy."""
    pieces: list[bytes] = []
    source = Source(TOPIC, 0, {}, (), (Partition(TOPIC, ledgers, 1),))

    def write(piece: Buffer) -> None:
        pieces.append(bytes(piece))

    await export(client_with(link), AdminClient(url), source, "0.1.0", write, 1)
    return [bytes(one) for _, one in TopicReader(reading(b"".join(pieces)), "it").entries()]


def reading(data: bytes) -> Callable[[int], bytes]:
    view = memoryview(data)

    def read(size: int) -> bytes:
        nonlocal view
        taken, view = bytes(view[:size]), view[size:]
        return taken

    return read


async def test_what_comes_after_the_beginning_is_not_in_the_copy() -> None:
    assert await exported(FakeLink(at(0, 1, 2, 3), last=Position(3, 1))) == [entry(0), entry(1)]


async def test_a_topic_without_messages_is_copied() -> None:
    assert await exported(FakeLink([])) == []


async def test_a_message_of_a_transaction_is_refused_by_name() -> None:
    stored = [(Position(3, 0), entry(txnid_most_bits=0, txnid_least_bits=1))]
    with pytest.raises(BackupRefused, match="persistent://t/n/x: 3:0 is a message of a transaction"):
        await exported(FakeLink(stored))


async def test_markers_that_a_broker_gives_are_left_out() -> None:
    stored = [(Position(3, 0), entry(marker_type=10)), *at(1)]
    assert await exported(FakeLink(stored)) == [entry(1)]


async def test_an_entry_that_was_not_given_must_be_a_marker() -> None:
    with http_fake() as admin:
        admin.answer("GET", f"{PATH}/ledger/3/entry/1", {}, 200, **{"X-Pulsar-marker-type": "10"})
        assert await exported(FakeLink(at(0, 2)), admin.url) == [entry(0), entry(2)]
        admin.answer("GET", f"{PATH}/ledger/3/entry/1", {})
        with pytest.raises(BackupRefused, match="the entry 3:1 was not given"):
            await exported(FakeLink(at(0, 2)), admin.url)
        with pytest.raises(BackupRefused, match=r"the entry 3:0 was not given: .* \(.*HTTP 404"):
            await exported(FakeLink(at(1)), admin.url)


async def test_a_broker_that_gives_nothing_more_is_named() -> None:
    with pytest.raises(BackupRefused, match=r"messages up to 3:5 are there; the last one that came is 3:0"):
        await exported(FakeLink(at(0), last=Position(3, 5)))


# ------------------------------------------------------------------------------------------------ admin


def answers_of(admin: HttpFake, *, partitions: int = 0, entries: int = 0, offloaded: bool = False) -> None:
    admin.answer("GET", f"{PATH}/partitions", {"partitions": partitions})
    admin.answer("GET", f"{PATH}/properties", {"team": "money", "PULSAR.SHADOW_SOURCE": "other"})
    admin.answer("GET", f"{PATH}/internalStats", {"numberOfEntries": entries, "cursors": {"s": {}, "__compaction": {}}})
    ledgers = [{"ledgerId": 4, "entries": 2, "isOffloaded": offloaded}, {"ledgerId": 9}]
    admin.answer("GET", f"{PATH}/internal-info", {"ledgers": ledgers})


def test_what_is_copied_of_a_topic_is_known_before() -> None:
    with http_fake() as admin:
        answers_of(admin, entries=2)
        source = source_of(AdminClient(admin.url), "t/n/x")
    assert source == Source(TOPIC, 0, {"team": "money"}, ("s",), (Partition(TOPIC, ((4, 2), (9, None)), 2),)), (
        "what brokers keep for themselves is not copied"
    )


def test_ledgers_in_tiered_storage_are_refused_by_name() -> None:
    with http_fake() as admin:
        answers_of(admin, offloaded=True)
        with pytest.raises(BackupRefused, match="ledgers in tiered storage, which are not copied: 4"):
            source_of(AdminClient(admin.url), "t/n/x")


def test_a_topic_that_is_not_persistent_has_no_copy() -> None:
    admin = AdminClient("http://127.0.0.1:1")
    with pytest.raises(BackupRefused, match="nothing of it is stored"):
        source_of(admin, "non-persistent://t/n/x")
    with pytest.raises(BackupRefused, match="nothing would be stored"):
        make_ready(admin, "non-persistent://t/n/x", HEAD, append=True)


def test_a_target_with_messages_is_refused_unless_they_may_be_there() -> None:
    with http_fake() as admin:
        answers_of(admin, entries=1)
        with pytest.raises(BackupRefused, match="x has messages already; --append"):
            make_ready(AdminClient(admin.url), "t/n/x", HEAD, append=False)
        assert make_ready(AdminClient(admin.url), "t/n/x", HEAD, append=True) == [TOPIC]
        with pytest.raises(BackupRefused, match="has no partitions, and persistent://t/n/source had 2 partitions"):
            make_ready(AdminClient(admin.url), "t/n/x", HEAD._replace(partitions=2), append=True)


# ---------------------------------------------------------------------------------------------- import


def reader_of(entries: list[bytes], head: TopicHead = HEAD, cut: int = 0) -> TopicReader:
    writer = TopicWriter()
    data = b"".join([writer.head(head), *(b"".join(writer.entry(0, one)) for one in entries), writer.tail()])
    return TopicReader(reading(data[: len(data) - cut]), "it")


async def test_so_many_entries_are_under_way_at_most() -> None:
    link = FakeLink([])
    assert await put_in(client_with(link), [TOPIC], reader_of([entry(1)] * (3 * AT_ONCE))) == 3 * AT_ONCE
    assert link.most_waiting == AT_ONCE
    assert link.answered == 3 * AT_ONCE
    assert [send.sequence_id for send in link.sends] == list(range(3 * AT_ONCE)), "and not those of the messages"


async def test_so_many_bytes_are_under_way_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    most, large = 100_000, entry(payload=bytes(30_000))
    monkeypatch.setattr("magnetar.processes.backup.topic_copying.BYTES_AT_ONCE", most)
    link = FakeLink([])
    await put_in(client_with(link), [TOPIC], reader_of([large] * 12))
    assert most < link.most_bytes <= most + len(large)


async def test_batches_and_chunks_are_sent_as_such() -> None:
    link = FakeLink([])
    entries = [
        entry(payload=bytes(60), num_messages_in_batch=10),
        entry(num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=9, uuid="u"),
    ]
    await put_in(client_with(link), [TOPIC], reader_of(entries))
    assert [send.num_messages for send in link.sends] == [10, 1]
    assert [send.is_chunk for send in link.sends] == [False, True]
    assert link.pushed == entries


async def test_an_entry_that_the_target_took_for_a_duplicate_is_named() -> None:
    link = FakeLink([])
    link.next_position = Position(-1, -1)
    with pytest.raises(BackupRefused, match="took an entry for one that it has already; up to 1 entries"):
        await put_in(client_with(link), [TOPIC], reader_of([entry()]))


async def test_what_broke_off_says_what_is_stored() -> None:
    with pytest.raises(BackupRefused, match=r"was cut after .*; up to 2 entries are stored: delete the topic"):
        await put_in(client_with(FakeLink([])), [TOPIC], reader_of([entry(), entry()], cut=1))
    with pytest.raises(BackupRefused, match=r"was cut after .*; nothing is stored"):
        await put_in(client_with(FakeLink([])), [TOPIC], reader_of([], cut=1))


async def test_versions_at_the_target_are_asked_for_first() -> None:
    link, head = FakeLink([]), HEAD._replace(schemas=(CopiedSchema(2, 2, b"{}", {"a": "b"}),))
    await put_in(client_with(link), [TOPIC], reader_of([entry(schema_version=version_bytes(2))], head))
    assert link.pushed == [entry(schema_version=version_bytes(7))]
    kinds = [kind for kind, _ in link.asked]
    made = wire.BaseCommand
    assert kinds == [made.PRODUCER, made.CLOSE_PRODUCER, made.PRODUCER]


# ------------------------------------------------------------------------------------------------- way


@pytest.mark.parametrize("url", ["http://localhost:8080", "pulsar://", "localhost:6650"])
def test_what_is_no_service_url_is_named(url: str) -> None:
    with pytest.raises(BackupRefused, match="is not a service URL"):
        client_at(url, Access(), lambda: 1)


async def test_credentials_do_not_leave_the_kind_of_port_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_at("pulsar+ssl://localhost:6651", Access(token="secret"), lambda: 1)
    with pytest.raises(SystemClientError, match=r"the way to it has no pulsar\+ssl, as --service-url has"):
        async with client._open("pulsar://elsewhere:6650"):
            pass


async def test_the_next_address_is_tried_and_shown_the_token() -> None:
    shown: list[wire.CommandConnect] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (frame,) = FrameSplitter().feed(await reader.read(1 << 16))
        shown.append(parse_frame(frame)[0].connect)
        writer.write(command(wire.BaseCommand.CONNECTED, server_version="x"))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = client_at(f"pulsar://127.0.0.1:1,127.0.0.1:{port}", Access(token="token:secret"), lambda: 1)
    async with client._open(""):
        pass
    server.close()
    assert [(one.auth_method_name, one.auth_data) for one in shown] == [("token", b"secret")]
    client = client_at("pulsar://127.0.0.1:1,127.0.0.1:2", Access(), lambda: 1)
    with pytest.raises(SystemClientError, match=r"no connection to pulsar://127\.0\.0\.1:1,127\.0\.0\.1:2: .*refused"):
        async with client._open(""):
            pass


def test_the_silence_of_a_broker_is_longer_than_its_pauses() -> None:
    assert topic_copying.SILENCE_S > 30, "brokers ping every 30 s"
