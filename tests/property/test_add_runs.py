"""Adds taken as a run have the same effects as adds taken one by one: on cache, ledgers, journal and answers."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.serving.connection import Connection
from bookie.serving.request_rules import RequestRules
from bookie.serving.server import Limits, Server, ServerParts
from bookie.storage.ledgers import Ledgers
from bookie.storage.read_cache import ReadCache
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.codec_v2 import (
    FLAG_HIGH_PRIORITY,
    FLAG_RECOVERY_ADD,
    add_request_head,
    read_request,
)
from magnetar_core.bookkeeper.wire.entry import HEADER
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from magnetar_core.runtime.data.varint import unvarint
from tests.support import bookie_requests
from tests.support.manual_clock import ManualClock

KEYS = (bytes(20), b"k" * 20)

adds = st.tuples(
    st.sampled_from((0, 1, 2, -1)),  # ledger id
    st.sampled_from((1, 1, 1, 1, 0, -1, 3)),  # entry id after the one before
    st.sampled_from((1, 1, 1, 0, 4)),  # last add confirmed before it
    st.sampled_from((0, 0, 0, 0, FLAG_RECOVERY_ADD, FLAG_HIGH_PRIORITY)),
    st.sampled_from((0, 0, 0, 0, 1)),  # which key
    st.sampled_from((0, 0, 0, 3, 40)),  # bytes behind the header
)


class Wire:
    """Stands in for the socket and for the journal."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.answers: list[Any] = []
        self.sent: list[bytes] = []

    def get_extra_info(self, name: str) -> str:
        return name

    def set_write_buffer_limits(self, *limits: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.sent.append(bytes(data))

    def writelines(self, buffers: list[bytes]) -> None:
        self.sent += buffers

    def abort(self) -> None:
        self.sent.append(b"aborted")

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def touched(self) -> None: ...

    def put(self, records: list[Any], must_sync: bool, done: Any, argument: Any) -> None:
        self.records += [bytes(record) for record in records]
        self.answers.append((done, argument))


class OneByOne(RequestRules):
    """Rules that never take a run."""

    __slots__ = ()

    def add_run(self, frames: Any, start: int, stop: int, records: Any, answers: Any) -> int:
        return 0

    def add_run_v3(self, frames: Any, start: int, stop: int, records: Any, answers: Any) -> tuple[int, int]:
        return 0, 0


async def worked_on(kind: type[RequestRules], chunks: list[bytes], fenced: set[int], journals: int) -> dict[str, Any]:
    wires: list[Any] = [Wire() for _ in range(journals)]
    cache, read_cache, ledgers = WriteCache(1 << 20), ReadCache(1 << 20), Ledgers()
    rules = kind(ledgers, cache, read_cache, 6)
    for ledger_id in (1, 2):  # a ledger from before a restart: what it has on disk is not known
        ledger = ledgers.create(ledger_id, KEYS[0])
        ledger.is_tail_known, ledger.is_key_journaled = False, True
        read_cache.put_run(ledger_id, [(entry_id, b"old") for entry_id in range(12)])
    for ledger_id in fenced:
        ledger = ledgers.get(ledger_id) or ledgers.create(ledger_id, KEYS[0])
        ledger.fenced = True
    anything = wires[0]
    server = Server(
        ServerParts(
            rules=rules,
            cache=cache,
            storage=anything,
            journals=wires,
            checkpointer=anything,
            readers=[anything],
            clock=ManualClock(),
            limits=Limits(1000),
            disk_usage=anything,
        )
    )
    connection = Connection(server)
    connection.connection_made(anything)
    for chunk in chunks:
        connection.data_received(chunk)
    for wire in wires:
        for done, argument in wire.answers:
            done(argument, None)
    connection._flush()
    return {
        "cache": {key: dict(sorted(entries.items())) for key, entries in cache.swap().items()},
        "cached": (cache.entries, cache.bytes),
        "read cache": dict(read_cache._entries),
        "ledgers": sorted(
            (one.ledger_id, one.last_entry_id, one.last_add_confirmed, one.fenced, one.is_key_journaled)
            for one in ledgers
        ),
        "records": [wire.records for wire in wires],
        "sent": b"".join(wires[0].sent),
        "counters": (server.counters.adds, server.counters.add_bytes, server.counters.adds_refused),
        "in flight": (server.adds_in_flight, connection.writes.adds_in_flight, connection.writes.add_bytes_in_flight),
    }


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(*[adds] * 8, st.sampled_from(("read", "read", "read", "short"))), min_size=8, max_size=40),
    st.lists(st.integers(0, 2000), max_size=4),
    st.sets(st.sampled_from((0, 2)), max_size=1),
    st.sampled_from((1, 2)),
    st.sampled_from(("v2", "v3", "both")),
)
async def test_a_run_of_adds_is_what_its_adds_are(
    wanted: list[Any], cuts: list[int], fenced: set[int], journals: int, protocol: str
) -> None:
    stream = b""
    at = dict.fromkeys((0, 1, 2, -1), -1)
    for one in wanted:
        if one == "short":
            stream += (20).to_bytes(4) + add_request_head(0, KEYS[0], 0)[4:24]
        elif one == "read":
            stream += read_request(9, 5)
        else:
            ledger_id, step, behind, flags, key, size = one
            at[ledger_id] = entry_id = max(at[ledger_id] + step, -1)
            entry = HEADER.pack(ledger_id, entry_id, entry_id - behind, 7) + bytes(size)
            if protocol == "v3" or (protocol == "both" and entry_id % 3 == 0):
                stream += bookie_requests.add_request(
                    len(stream),
                    ledger_id,
                    entry_id,
                    KEYS[key],
                    entry,
                    recovery=flags == FLAG_RECOVERY_ADD,
                    priority=bookie_requests.HIGH_PRIORITY if flags == FLAG_HIGH_PRIORITY else 0,
                )
            else:
                stream += add_request_head(flags, KEYS[key], len(entry)) + entry
    places = sorted({0, *(place for place in cuts if place < len(stream)), len(stream)})
    chunks = [stream[start:stop] for start, stop in pairwise(places)]
    alone = await worked_on(OneByOne, chunks, fenced, journals)
    assert await worked_on(RequestRules, chunks, fenced, journals) == alone


stretches = st.tuples(
    st.sampled_from((0, 1, 2)),
    st.integers(1, 20),
    st.sampled_from((1, 1, 1, 0, 2)),
    st.integers(0, 3),
    st.sampled_from((0, 0, 0, 1)),
    st.sampled_from((0, 9)),
)
"""Ledger, adds, the step between their ids, how far their LAC is behind, key, size."""


@settings(max_examples=150, deadline=None)
@given(
    st.lists(stretches, min_size=1, max_size=6),
    st.lists(st.integers(0, 9000), max_size=4),
    st.sets(st.sampled_from((0, 2)), max_size=1),
    st.sampled_from((1, 2)),
)
async def test_adds_as_long_as_each_other_are_what_they_are_one_by_one(
    wanted: list[tuple[int, ...]], cuts: list[int], fenced: set[int], journals: int
) -> None:
    stream, txn_id, at = b"", 100, dict.fromkeys((0, 1, 2), 120)
    for ledger_id, count, step, behind, key, size in wanted:
        for _ in range(count):
            txn_id += 1
            at[ledger_id] = entry_id = at[ledger_id] + step
            entry = HEADER.pack(ledger_id, entry_id, entry_id - behind, 7) + bytes(size)
            stream += bookie_requests.add_request(txn_id, ledger_id, entry_id, KEYS[key], entry)
    places = sorted({0, *(place for place in cuts if place < len(stream)), len(stream)})
    chunks = [stream[start:stop] for start, stop in pairwise(places)]
    alone = await worked_on(OneByOne, chunks, fenced, journals)
    assert await worked_on(RequestRules, chunks, fenced, journals) == alone


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_a_run_ends_where_the_connection_may_have_no_more_under_way(limit: int) -> None:
    wire: Any = Wire()
    cache, ledgers = WriteCache(1 << 20), Ledgers()
    rules = RequestRules(ledgers, cache, ReadCache(0), 6)
    server = Server(
        ServerParts(
            rules=rules,
            cache=cache,
            storage=wire,
            journals=[wire],
            checkpointer=wire,
            readers=[wire],
            clock=ManualClock(),
            limits=Limits(1000, limit),
            disk_usage=wire,
        )
    )
    connection = Connection(server)
    connection.connection_made(wire)
    entries = [HEADER.pack(7, entry_id, entry_id - 1, 7) for entry_id in range(10)]
    connection.data_received(b"".join(add_request_head(0, KEYS[0], len(entry)) + entry for entry in entries))
    assert cache.entries == min(limit, 10)
    while wire.answers:
        answers, wire.answers = wire.answers, []
        for done, argument in answers:
            done(argument, None)
    assert cache.entries == 10
    assert (server.adds_in_flight, server.add_bytes_in_flight) == (0, 0)


numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


@given(numbers, numbers, numbers, st.binary(min_size=20, max_size=20), st.binary(max_size=300))
def test_a_plain_add_is_read_without_protobuf_as_with_it(
    txn_id: int, ledger_id: int, entry_id: int, key: bytes, payload: bytes
) -> None:
    entry = HEADER.pack(ledger_id, entry_id, -1, 7) + payload
    frame = memoryview(bookie_requests.add_request(txn_id, ledger_id, entry_id, key, entry)[4:])
    found = v3.plain_add(frame)
    assert found is not None
    assert (found.ledger_id, found.entry_id, found.last_add_confirmed) == (ledger_id, entry_id, -1)
    assert found.master_key == key
    assert frame[found.body_at :] == entry
    assert v3.added(found) == v3.add_response(txn_id, v3.V3Error.EOK, ledger_id, entry_id)


def changed(data: st.DataObject, whole: bytes) -> bytearray:
    """*whole* with a few bytes changed, cut or put in."""
    frame = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(frame) - 1))
        match data.draw(st.sampled_from(("change", "cut", "put in"))):
            case "change":
                frame[at] = data.draw(st.integers(0, 255))
            case "cut":
                del frame[at]
            case _:
                frame.insert(at, data.draw(st.integers(0, 255)))
    return frame


@settings(max_examples=500)
@given(st.data())
def test_bytes_that_are_taken_for_a_plain_add_are_one(data: st.DataObject) -> None:
    """Frames with a few bytes changed, cut or put in: what is taken is what protobuf finds in them."""
    entry = HEADER.pack(5, 130, 129, 7) + b"payload"
    frame = changed(data, bookie_requests.add_request(77, 5, 130, KEYS[1], entry)[4:])
    found = v3.plain_add(memoryview(frame))
    if found is None:
        return
    request = v3.parse_request(frame)
    header, add = request.header, request.addRequest
    assert (header.version, header.operation, header.priority) == (3, v3.ADD_ENTRY, 0)
    assert (add.ledgerId, add.entryId, add.masterKey) == (found.ledger_id, found.entry_id, found.master_key)
    assert add.body == bytes(frame[found.body_at :])
    assert not add.HasField("flag")
    assert not add.writeFlags
    assert v3.added(found) == v3.add_response(header.txnId, 0, add.ledgerId, add.entryId)
    assert [field.name for field, _ in pb.Request.ListFields(request)] == ["header", "addRequest"]


def add_frame(txn_id: int, ledger_id: int, entry_id: int, key: bytes, payload: bytes, lac: int = 4) -> bytes:
    entry = HEADER.pack(ledger_id, entry_id, lac, 7) + payload
    return bookie_requests.add_request(txn_id, ledger_id, entry_id, key, entry)[4:]


def shape_of(frame: bytes) -> v3.AddShape:
    found = v3.plain_add(memoryview(frame))
    assert found is not None
    return v3.AddShape(memoryview(frame), found)


@settings(max_examples=500)
@given(st.data(), numbers, st.integers(0, 40_000), st.binary(max_size=40))
def test_what_the_form_of_an_add_before_takes_is_what_is_found_without_it(
    data: st.DataObject, txn_id: int, entry_id: int, payload: bytes
) -> None:
    shape = shape_of(add_frame(txn_id, 5, entry_id, KEYS[1], payload))
    for _ in range(3):
        number = data.draw(st.integers(max(0, entry_id - 200), entry_id + 40_000))
        other = data.draw(st.integers(0, 2**63 - 1) | st.just(txn_id + 1))
        ledger_id, key = data.draw(st.sampled_from([5, 5, 5, 6])), data.draw(st.sampled_from([1, 1, 1, 0]))
        frame: bytes = add_frame(other & (2**63 - 1), ledger_id, number, KEYS[key], payload, number - 1)
        if data.draw(st.booleans()):
            frame = bytes(changed(data, frame))
        found, plain = shape.read(memoryview(frame)), v3.plain_add(memoryview(frame))
        if found is not None:
            assert plain is not None
            assert found == (plain.entry_id, plain.last_add_confirmed, v3.added(plain))
            assert (plain.ledger_id, plain.master_key, plain.body_at) == (5, KEYS[1], shape.body_at)


@pytest.mark.parametrize("at", [7, 8, 9])
def test_the_form_of_an_add_takes_no_transaction_of_another_length(at: int) -> None:
    shape = shape_of(add_frame(20_000, 5, 120, KEYS[0], b"payload"))
    frame = bytearray(add_frame(20_001, 5, 121, KEYS[0], b"payload"))
    assert shape.read(memoryview(frame)) is not None
    frame[at] ^= 0x80
    assert shape.read(memoryview(frame)) is None
    assert v3.plain_add(memoryview(frame)) is None


def test_the_form_of_an_add_takes_those_behind_it_until_a_number_is_longer() -> None:
    shape = shape_of(add_frame(9_000, 5, 120, KEYS[0], b"payload"))
    taken = [shape.read(memoryview(add_frame(9_001 + at, 5, 121 + at, KEYS[0], b"other..", 120))) for at in range(10)]
    assert [one is not None for one in taken] == [True] * 7 + [False] * 3
    shape = shape_of(add_frame(9_000, 5, 16_000, KEYS[0], b"payload"))
    taken = [
        shape.read(memoryview(add_frame(9_001 + at, 5, 16_001 + at, KEYS[0], b"other..", 16_000))) for at in range(400)
    ]
    assert [one is not None for one in taken] == [True] * 383 + [False] * 17
    assert taken[382] == (16_383, 16_000, v3.add_response(9_383, 0, 5, 16_383))


@pytest.mark.parametrize(
    "options", [{"recovery": True}, {"write_flags": v3.DEFERRED_SYNC}, {"priority": bookie_requests.HIGH_PRIORITY}]
)
def test_an_add_with_anything_special_is_left_to_protobuf(options: dict[str, Any]) -> None:
    entry = HEADER.pack(5, 6, 5, 7)
    assert v3.plain_add(memoryview(bookie_requests.add_request(1, 5, 6, KEYS[0], entry)[4:])) is not None
    assert v3.plain_add(memoryview(bookie_requests.add_request(1, 5, 6, KEYS[0], entry, **options)[4:])) is None


@pytest.mark.parametrize("ids", [(5, 7), (4, 6)])
def test_an_entry_under_other_ids_than_its_own_is_left_to_protobuf(ids: tuple[int, int]) -> None:
    assert v3.plain_add(memoryview(bookie_requests.add_request(1, *ids, KEYS[0], HEADER.pack(5, 6, 5, 7))[4:])) is None


@pytest.mark.parametrize("change", [-1, 1])
def test_an_add_that_tells_another_size_of_its_entry_is_left_to_protobuf(change: int) -> None:
    frame = bytearray(bookie_requests.add_request(1, 5, 6, KEYS[0], HEADER.pack(5, 6, 5, 7) + b"payload")[4:])
    found = v3.plain_add(memoryview(frame))
    assert found is not None
    frame[found.body_at - 1] += change
    assert v3.plain_add(memoryview(frame)) is None


@given(numbers, numbers, numbers, st.binary(max_size=300), st.one_of(st.just(-1), numbers))
def test_a_plain_read_is_read_and_answered_without_protobuf_as_with_it(
    txn_id: int, ledger_id: int, entry_id: int, body: bytes, max_lac: int
) -> None:
    found = v3.plain_read(memoryview(v3.read_request(txn_id, ledger_id, entry_id)[4:]))
    assert found is not None
    assert (found.ledger_id, found.entry_id) == (ledger_id, entry_id)
    before, behind = v3.read_parts(found, len(body), max_lac)
    whole = v3.read_response(txn_id, v3.V3Error.EOK, ledger_id, entry_id, body=body, max_lac=max_lac)
    assert before + body + behind == whole


@settings(max_examples=500)
@given(st.data())
def test_bytes_that_are_taken_for_a_plain_read_are_one(data: st.DataObject) -> None:
    frame = changed(data, v3.read_request(300, 1, 130)[4:])
    found = v3.plain_read(memoryview(frame))
    if found is None:
        return
    request = v3.parse_request(frame)
    header, read = request.header, request.readRequest
    assert (header.version, header.operation, header.priority) == (3, v3.READ_ENTRY, 0)
    assert (read.ledgerId, read.entryId) == (found.ledger_id, found.entry_id)
    assert unvarint(found.txn_id) % 2**64 == header.txnId
    assert [field.name for field, _ in pb.ReadRequest.ListFields(read)] == ["ledgerId", "entryId"]
    assert [field.name for field, _ in pb.Request.ListFields(request)] == ["header", "readRequest"]


@pytest.mark.parametrize(
    "options",
    [{"fence_with": KEYS[1]}, {"previous_lac": 3}, {"timeout_ms": 9}, {"piggyback": True}, {"priority": 100}],
)
def test_a_read_with_anything_special_is_left_to_protobuf(options: dict[str, Any]) -> None:
    assert v3.plain_read(memoryview(v3.read_request(1, 5, 6)[4:])) is not None
    assert v3.plain_read(memoryview(v3.read_request(1, 5, 6, **options)[4:])) is None
    assert v3.plain_read(memoryview(v3.read_request(1, 5, -1)[4:])) is None


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(7, 0), (7, 2), (7, 3), (8, 0)])
async def test_a_plain_read_is_answered_like_one_that_protobuf_reads(ledger_id: int, entry_id: int) -> None:
    """One with a priority goes through protobuf, and its answer tells nothing of that."""
    entries = [HEADER.pack(7, number, number - 1, 7) + b"payload" for number in range(3)]
    adds = [bookie_requests.add_request(number, 7, number, KEYS[0], entry) for number, entry in enumerate(entries)]
    sent = []
    for priority in (0, bookie_requests.HIGH_PRIORITY):
        asked = v3.read_request(300, ledger_id, entry_id, priority=priority)
        sent.append((await worked_on(RequestRules, [*adds, asked], set(), 1))["sent"])
    assert sent[0] == sent[1]
    (answer,) = (
        one for frame in FrameSplitter(1000).feed(sent[0]) if (one := v3.parse_response(frame)).header.txnId == 300
    )
    there = ledger_id == 7 and entry_id < 3
    assert answer.status == (v3.V3Error.EOK if there else v3.V3Error.ENOENTRY if ledger_id == 7 else 402)
    assert answer.readResponse.body == (entries[entry_id] if there else b"")
    assert answer.readResponse.maxLAC == (1 if there else 0)
