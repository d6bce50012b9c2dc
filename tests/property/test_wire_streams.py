"""The fast splitter and codecs against slow twins."""

import contextlib
import struct

from hypothesis import given
from hypothesis import strategies as st

from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec
from magnetar_core.bookkeeper.wire.framing import FrameReceiver, FrameSplitter, MalformedFrame
from tests.support import bookie_requests

IDS = st.integers(0, 2**63 - 1)


@given(st.lists(st.binary(max_size=50), max_size=20), st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_any_cut_of_a_stream_gives_the_same_frames(payloads: list[bytes], steps: list[int]) -> None:
    stream = b"".join(len(payload).to_bytes(4) + payload for payload in payloads)
    splitter, found, at = FrameSplitter(), [], 0
    for number in range(len(stream) + 1):
        step = steps[number % len(steps)]
        found += [bytes(frame) for frame in splitter.feed(stream[at : at + step])]
        at += step
        if at >= len(stream):
            break
    assert found == payloads
    assert splitter.is_between_frames


class _Small(FrameReceiver):
    """With limits that short frames reach."""

    LARGE_BYTES = 20
    CHUNK_BYTES = 32
    FIRST_BYTES = 6


@given(st.lists(st.binary(max_size=90), max_size=20), st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_a_receiver_gives_the_frames_of_any_arrival(payloads: list[bytes], steps: list[int]) -> None:
    stream = b"".join(len(payload).to_bytes(4) + payload for payload in payloads)
    receiver = _Small(limit_bytes=90)
    held: list[memoryview] = []
    at = turn = 0
    while at < len(stream):
        room = receiver.room
        count = min(len(room), len(stream) - at, steps[turn % len(steps)])
        room[:count] = stream[at : at + count]
        at, turn = at + count, turn + 1
        held += receiver.took(count)
        complete = sum(4 + len(frame) for frame in held)
        assert receiver.missing_bytes <= len(stream) - at
        if receiver.missing_bytes:
            (length,) = struct.unpack_from(">i", stream, complete)
            assert complete + 4 + length == at + receiver.missing_bytes
    assert [bytes(frame) for frame in held] == payloads, "frames are not changed by what is received later"
    assert receiver.missing_bytes == 0


@given(st.binary(max_size=100))
def test_any_bytes_are_parsed_or_malformed(data: bytes) -> None:
    for parse in (v2.parse_request, v2.parse_response, v3.parse_request, v3.parse_response, v3.decode_availability):
        with contextlib.suppress(MalformedFrame):
            parse(memoryview(data))


@given(st.sampled_from(DigestType), st.binary(max_size=30), IDS, IDS, st.integers(-1, 2**62), st.binary(max_size=300))
def test_entries_survive_the_round_trip(
    digest_type: DigestType, password: bytes, ledger_id: int, entry_id: int, lac: int, payload: bytes
) -> None:
    codec = EntryCodec(digest_type, password)
    data = codec.head(ledger_id, entry_id, lac, len(payload), payload) + payload
    request = v2.parse_request(memoryview(v2.add_request_head(6, b"k" * 20, len(data)) + data)[4:])
    assert request == (v2.ADD_ENTRY, 2, 6, ledger_id, entry_id, b"k" * 20, data)
    entry = codec.open(data, ledger_id, entry_id)
    assert (entry.last_add_confirmed, entry.length, bytes(entry.payload)) == (lac, len(payload), payload)


@given(st.sets(st.integers(0, 200)))
def test_lists_of_entries_hold_exactly_what_they_were_made_of(entry_ids: set[int]) -> None:
    groups = v3.decode_availability(bookie_requests.encode_availability(sorted(entry_ids)))
    assert {entry_id for entry_id in range(210) if v3.is_available(groups, entry_id)} == entry_ids
