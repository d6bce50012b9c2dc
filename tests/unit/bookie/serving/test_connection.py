"""A connection and the two protocols on it, with a transport that only records."""

from typing import Any

import pytest

from bookie.serving.cold_reads import ColdRead
from bookie.serving.connection import Connection
from bookie.serving.protocol import ALL_ADDS, ALL_READS, CACHE_FULL, CLOSED, SLOW_PEER
from bookie.serving.request_rules import RequestRules
from bookie.serving.server import Limits, Server, ServerParts
from bookie.storage.ledgers import Ledgers
from bookie.storage.read_cache import ReadCache
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from tests.support.bookie_disks import KEY, stored_entry
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.both_loops


class Outside:
    """The surroundings of a connection: transport, journal, checkpointer, reader."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_reading = True
        self.is_aborted = False
        self.put_to_journal: list[tuple[Any, Any]] = []
        self.order: list[bytes] = []

    def get_extra_info(self, name: str) -> str:
        return name

    def set_write_buffer_limits(self, *limits: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, buffers: list[bytes]) -> None:
        self.sent += b"".join(buffers)

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def touched(self) -> None: ...

    def put(self, records: list[bytes], must_sync: bool, done: Any, argument: Any) -> None:
        self.put_to_journal.append((done, argument))
        self.order.append(b"".join(bytes(record) for record in records))

    def finish_puts(self, refusal: Exception | None = None) -> None:
        puts, self.put_to_journal = self.put_to_journal, []
        for done, argument in puts:
            done(argument, refusal)


class Bench:
    """One connection of a server that has ledger 1, with entry 0 in memory."""

    def __init__(self, **limits: int) -> None:
        self.outside = Outside()
        cache, read_cache, ledgers = WriteCache(1 << 20), ReadCache(1 << 20), Ledgers()
        rules = RequestRules(ledgers, cache, read_cache, 6)
        assert rules.add(1, 0, KEY, stored_entry(1, 0), False, False, []) == 0
        out: Any = self.outside
        self.server = Server(
            ServerParts(
                rules=rules,
                cache=cache,
                storage=out,
                journals=[out],
                checkpointer=out,
                readers=[out],
                clock=ManualClock(),
                limits=Limits(1 << 16, **limits),
                disk_usage=out,
            )
        )
        self.connection = Connection(self.server)
        self.connection.connection_made(out)

    def bring(self, *frames: bytes) -> None:
        self.connection.data_received(b"".join(frames))

    def answers(self) -> list[memoryview]:
        """The answers since the last call, without the length words."""
        self.connection._flush()
        data, self.outside.sent = memoryview(self.outside.sent), b""
        frames = []
        while data:
            end = 4 + int.from_bytes(data[:4])
            frames.append(data[4:end])
            data = data[end:]
        return frames


def add_v2(entry_id: int) -> bytes:
    entry = stored_entry(1, entry_id)
    return v2.add_request_head(0, KEY, len(entry)) + entry


def request_v3(operation: Any, **parts: Any) -> bytes:
    header = pb.BKPacketHeader(version=pb.ProtocolVersion.VERSION_THREE, operation=operation, txnId=5)
    body = pb.Request(header=header, **parts).SerializeToString()
    return len(body).to_bytes(4) + body


def read_v3(entry_id: int) -> bytes:
    return request_v3(v3.READ_ENTRY, readRequest=pb.ReadRequest(ledgerId=1, entryId=entry_id))


def poll_v3() -> bytes:
    read = pb.ReadRequest(ledgerId=1, entryId=1, previousLAC=50, timeOut=60_000)
    return request_v3(v3.READ_ENTRY, readRequest=read)


async def test_the_first_frame_of_the_second_protocol_switches_for_good() -> None:
    bench = Bench()
    bench.bring(read_v3(0), v2.read_request(1, 0), v2.read_request(1, 0))
    first, *rest = bench.answers()
    assert v3.parse_response(first).readResponse.body == stored_entry(1, 0)
    assert [v2.parse_response(frame)[:4] for frame in rest] == [(2, 0, 1, 0)] * 2
    bench.bring(read_v3(0))
    assert bench.outside.is_aborted
    assert bench.server.counters.malformed == 1


async def test_long_polls_from_before_the_switch_end_with_the_connection() -> None:
    bench = Bench()
    bench.bring(poll_v3(), v2.read_request(1, 0))
    assert bench.server.long_polls == 1
    bench.connection.connection_lost(None)
    assert bench.server.long_polls == 0


async def test_adds_are_journaled_before_the_fence_that_follows_them() -> None:
    bench = Bench()
    bench.bring(add_v2(1), add_v2(2), v2.read_request(1, 0, v2.FLAG_DO_FENCING, KEY), add_v2(3))
    adds, fence = bench.outside.order
    assert adds.endswith(stored_entry(1, 2))
    assert stored_entry(1, 2) not in fence
    assert not bench.answers()[1:], "the add behind the fence is refused at once, the others wait"
    bench.outside.finish_puts()
    assert [v2.parse_response(frame)[:4] for frame in bench.answers()] == [(1, 0, 1, 1), (1, 0, 1, 2), (2, 0, 1, 0)]


async def test_a_refusal_of_the_journal_answers_adds_of_both_protocols() -> None:
    bench = Bench()
    entry = stored_entry(1, 1)
    add = pb.AddRequest(ledgerId=1, entryId=1, masterKey=KEY, body=entry)
    bench.bring(request_v3(v3.ADD_ENTRY, addRequest=add), add_v2(2))
    bench.outside.finish_puts(OSError("no space"))
    first, second = bench.answers()
    answer = v3.parse_response(first)
    assert (answer.header.txnId, answer.addResponse.entryId) == (5, 1)
    assert answer.addResponse.status == pb.StatusCode.EREADONLY
    assert v2.parse_response(second)[:4] == (1, 105, 1, 2)


async def test_frames_wait_until_every_reason_to_hold_the_connection_is_over() -> None:
    bench = Bench()
    connection, outside = bench.connection, bench.outside
    connection.hold(CACHE_FULL)
    connection.pause_writing()
    bench.bring(v2.read_request(1, 0))
    assert not bench.answers()
    connection.go_on(CACHE_FULL)
    assert (outside.is_reading, connection.held_for) == (False, SLOW_PEER)
    assert not bench.answers()
    connection.go_on(SLOW_PEER)
    assert (outside.is_reading, connection.held_for) == (True, 0)
    assert len(bench.answers()) == 1


async def test_a_connection_held_for_all_adds_is_known_to_the_server() -> None:
    bench = Bench(adds_in_all=2)
    bench.bring(add_v2(1), add_v2(2), add_v2(3))
    assert bench.connection.held_for == ALL_ADDS
    assert list(bench.server.held) == [bench.connection]
    bench.outside.finish_puts()
    assert (bench.connection.held_for, bench.server.held) == (0, {})
    assert bench.server.adds_in_flight == 0


async def test_reads_of_a_connection_that_is_lost_release_those_that_wait_for_them() -> None:
    bench = Bench(reads_in_all=2)
    for _ in range(2):
        bench.connection._reads.read_cold(ColdRead(lambda _: (None, 0), lambda *_: None))
    other = Connection(bench.server)
    transport: Any = Outside()
    other.connection_made(transport)
    other.hold(ALL_READS)  # with no read of its own left that could release it
    bench.connection.connection_lost(None)
    assert (bench.server.reads_in_flight, other.held_for) == (0, 0)


@pytest.mark.parametrize("ending", ["abort", "lost"])
async def test_a_connection_that_ended_never_goes_on(ending: str) -> None:
    bench = Bench()
    bench.connection.hold(CACHE_FULL)
    bench.bring(v2.read_request(1, 0))
    if ending == "abort":
        bench.connection.abort()
    else:
        bench.connection.connection_lost(None)
    bench.connection.go_on(CACHE_FULL)
    assert bench.connection.held_for == CLOSED
    assert not bench.answers()
    assert bench.server.counters.reads == 0
