import struct

import pytest

from magnetar_core.bookkeeper.wire.framing import FrameReceiver, FrameSplitter, FrameTooLarge
from tests.support.streams import check_stream


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def test_frames_come_out_whole_wherever_the_stream_is_cut() -> None:
    payloads = [b"", b"a", b"", b"hello", bytes(range(40))]
    check_stream(FrameSplitter, b"".join(map(frame, payloads)), payloads)


@pytest.mark.parametrize("length", [9, 2**31 - 1, -1, -(2**31)])
def test_a_frame_that_announces_too_much_is_refused_before_it_has_arrived(length: int) -> None:
    splitter = FrameSplitter(limit_bytes=8)
    assert [bytes(view) for view in splitter.feed(frame(b"12345678"))] == [b"12345678"]
    with pytest.raises(FrameTooLarge, match=str(length)):
        splitter.feed(struct.pack(">i", length))


def test_chunks_of_an_unfinished_frame_are_kept_until_it_is_whole() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(frame(b"x" * 100)[:50]) == []
    assert not splitter.is_between_frames
    assert [bytes(view) for view in splitter.feed(frame(b"x" * 100)[50:])] == [b"x" * 100]
    assert splitter.is_between_frames


class _Fed:
    """A receiver that gets what a socket would put into its room."""

    def __init__(self) -> None:
        self.receiver = FrameReceiver()

    def feed(self, data: bytes) -> list[memoryview]:
        found = []
        while data:
            room = self.receiver.room
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            found += self.receiver.took(count)
        return found


def test_a_receiver_gives_small_frames_wherever_the_stream_is_cut() -> None:
    payloads = [b"", b"a", b"", b"hello", bytes(range(40))]
    check_stream(_Fed, b"".join(map(frame, payloads)), payloads)


@pytest.mark.parametrize("begun", [1, 4, 5, 100_000])
def test_a_large_frame_gets_room_of_its_own_once(begun: int) -> None:
    asked: list[int] = []

    def allocate(size: int) -> bytearray:
        asked.append(size)
        return bytearray(size)

    payload = bytes(range(256)) * 2048
    stream = frame(b"small") + frame(payload) + frame(b"next")
    receiver = FrameReceiver(allocate=allocate)
    found = []
    for part in (stream[: 9 + begun], stream[9 + begun :]):
        while part:
            room = receiver.room
            count = min(len(room), len(part))
            room[:count] = part[:count]
            part = part[count:]
            found += [bytes(view) for view in receiver.took(count)]
    assert found == [b"small", payload, b"next"]
    assert asked == [len(payload)]


def test_a_receiver_refuses_what_is_too_large_before_it_asks_for_room() -> None:
    def allocate(size: int) -> bytearray:
        raise AssertionError(f"room for {size} bytes")

    receiver = FrameReceiver(allocate=allocate)
    receiver.room[:4] = struct.pack(">i", 2**31 - 1)
    with pytest.raises(FrameTooLarge, match=str(2**31 - 1)):
        receiver.took(4)
