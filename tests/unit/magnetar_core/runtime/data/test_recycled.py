import time
from concurrent.futures import ThreadPoolExecutor

from magnetar_core.runtime.data.recycled import RecycledBuffers
from magnetar_core.runtime.types import KIB, MIB


def test_room_is_used_again_when_no_view_of_it_is_left() -> None:
    buffers = RecycledBuffers(4 * MIB)
    first = buffers.allocate(1_000_000)
    first[:3] = b"old"
    part = first[10:20]
    second = buffers.allocate(1_000_000)
    second[:3] = b"new"
    assert bytes(first[:3]) == b"old", "a view is there"
    del first
    third = buffers.allocate(1_000_000)
    third[:3] = b"3rd"
    assert bytes(second[:3]) == b"new"
    assert buffers.kept_bytes == 3 * MIB, "a part of the first one is still seen"
    part[:] = b"0123456789"
    del part
    again = buffers.allocate(900_000)
    assert bytes(again[10:20]) == b"0123456789", "the same room"
    assert len(again) == 900_000
    assert buffers.kept_bytes == 3 * MIB


def test_what_is_kept_has_a_limit() -> None:
    buffers = RecycledBuffers(2 * MIB)
    held = [buffers.allocate(MIB) for _ in range(5)]
    for number, view in enumerate(held):
        view[:1] = bytes((number,))
    assert [view[0] for view in held] == [0, 1, 2, 3, 4]
    assert buffers.kept_bytes == 2 * MIB
    large = buffers.allocate(3 * MIB)
    assert len(large) == 3 * MIB, "beyond the limit, so it is not kept"
    assert buffers.kept_bytes == 2 * MIB


def test_room_of_another_size_takes_the_place_of_what_is_free() -> None:
    buffers = RecycledBuffers(2 * MIB)
    small = [buffers.allocate(256 * KIB) for _ in range(8)]
    kept = small[0]
    kept[:4] = b"kept"
    del small
    large = buffers.allocate(MIB)
    large[:5] = b"large"
    assert buffers.kept_bytes == 2 * MIB, "four of the seven small ones made room"
    assert bytes(kept[:4]) == b"kept"
    del large
    assert bytes(buffers.allocate(MIB)[:5]) == b"large"


def test_small_room_is_not_taken_from_a_large_one() -> None:
    buffers = RecycledBuffers(8 * MIB)
    del (large := [buffers.allocate(4 * MIB)])[:]
    assert not large
    view = buffers.allocate(100)
    assert len(view) == 100
    assert buffers.kept_bytes == 4 * MIB + 256 * KIB


def test_threads_never_get_the_same_room() -> None:
    buffers = RecycledBuffers(4 * MIB)

    def use(mark: int) -> bool:
        for _ in range(300):
            view = buffers.allocate(300_000)
            view[:8] = view[-8:] = bytes([mark]) * 8
            time.sleep(0)
            if bytes(view[:8]) != bytes([mark]) * 8 or bytes(view[-8:]) != bytes([mark]) * 8:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(1, 5)))
