import struct

import pytest

from magnetar_core.bookkeeper.wire.framing import FrameSplitter, FrameTooLarge
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
