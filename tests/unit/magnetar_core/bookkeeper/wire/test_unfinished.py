"""Frames that are not whole: how much all of them hold, who waits, who goes on, and who is ended."""

from typing import Any

import pytest

from magnetar_core.bookkeeper.wire.unfinished import COUNTED_BYTES, LOOK_S, SLOW_S, STILL_S, TURN_S, Unfinished
from magnetar_core.runtime.types import MIB
from tests.support.manual_clock import ManualClock


class Peer:
    def __init__(self, name: str, port: "Port") -> None:
        self.name = name
        self.is_read = True
        self.problem = ""
        self._port = port

    def __repr__(self) -> str:
        return self.name

    def holds(self, held_bytes: int, *, of: int = MIB, is_new: bool = False) -> None:
        """*held_bytes* of a frame *of* so many have come."""
        assert self.is_read, "the socket is not read"
        self._port.unfinished.on_held(self, held_bytes, max(of - held_bytes, 0) if held_bytes else 0, is_new=is_new)

    def wait_for_room(self) -> None:
        self.is_read = False

    def go_on_with_frame(self) -> None:
        self.is_read = True

    def end_frame(self, problem: str) -> None:
        self.problem = problem


class Port:
    def __init__(self, limit_bytes: int | None = 8 * MIB, **changes: Any) -> None:
        self.clock = ManualClock()
        self.unfinished = Unfinished(limit_bytes, self.clock.monotonic, self.clock.call_later, **changes)

    def peers(self, count: int) -> list[Peer]:
        return [Peer(f"peer {number}", self) for number in range(count)]

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.clock.advance(LOOK_S)


def test_a_small_part_of_a_frame_does_not_count() -> None:
    port = Port()
    (peer,) = port.peers(1)
    peer.holds(COUNTED_BYTES - 1)
    port.pass_s(10 * STILL_S)
    assert (port.unfinished.bytes, peer.problem) == (0, "")
    peer.holds(COUNTED_BYTES, of=5 * MIB)
    assert port.unfinished.bytes == 5 * MIB, "as much as there will be, before it has come"


def test_those_without_room_are_not_read_but_one() -> None:
    port = Port()
    peers = port.peers(20)
    for peer in peers:
        peer.holds(COUNTED_BYTES)
    assert [peer.is_read for peer in peers] == [True] * 9 + [False] * 11, "eight have room, the ninth has the turn"
    for peer in peers[:9]:
        peer.holds(MIB - 1)
    assert [peer.is_read for peer in peers] == [True] * 9 + [False] * 11, "their room was counted before"
    for peer in peers[:3]:
        peer.holds(0, is_new=True)
    assert [peer.is_read for peer in peers] == [True] * 11 + [False] * 9


def test_each_frame_is_whole_in_the_end_however_many_others_stand_still() -> None:
    port = Port()
    still, honest = port.peers(8), port.peers(30)
    for peer in still:
        peer.holds(MIB)
    for peer in honest:
        peer.holds(COUNTED_BYTES)
    done = []
    for _ in range(len(honest)):
        (reads,) = [peer for peer in honest if peer.is_read and peer not in done]
        reads.holds(0)
        done.append(reads)
    assert done == honest
    assert [peer.problem for peer in honest] == [""] * len(honest)


def test_the_shortest_frame_is_read_first() -> None:
    """Those who fill the room with large ones wait for those who send small ones."""
    port = Port()
    large, small = port.peers(12), port.peers(3)
    for peer in large:
        peer.holds(COUNTED_BYTES, of=5 * MIB)
    for peer, size in zip(small, (300, 100, 200), strict=True):
        peer.holds(COUNTED_BYTES, of=COUNTED_BYTES + size)
    port.pass_s(TURN_S)
    assert [peer.is_read for peer in small] == [False, True, False]
    small[1].holds(0)
    assert [peer.is_read for peer in small] == [False, True, True]
    assert sum(peer.is_read for peer in large) == 2, "one has room, one had the turn"


def test_a_turn_of_one_who_does_not_go_on_ends() -> None:
    port = Port()
    peers = port.peers(11)
    for peer in peers:
        peer.holds(MIB)
    port.pass_s(TURN_S)
    assert [peer.is_read for peer in peers[8:]] == [True, True, False]
    assert peers[8].problem == ""


def test_while_others_wait_slow_frames_end_their_connections_the_oldest_first_until_there_is_room() -> None:
    port = Port()
    slow = port.peers(8)
    for peer in slow:
        peer.holds(COUNTED_BYTES)
        port.pass_s(LOOK_S)
    late = port.peers(14)
    for peer in late:
        peer.holds(COUNTED_BYTES, of=COUNTED_BYTES + 1)
    for at in range(round(SLOW_S / LOOK_S)):
        for peer in slow:
            if not peer.problem:
                peer.holds(COUNTED_BYTES + at)  # something comes: still it is slow
        port.clock.advance(LOOK_S)
    ended = [peer for peer in slow if peer.problem]
    assert ended == slow[:1], "there is room for all that waited"
    assert "others wait for room" in slow[0].problem
    assert all(peer.is_read and not peer.problem for peer in late)
    assert port.unfinished.ended == 1


def test_a_slow_frame_goes_on_while_nobody_waits_as_long_as_something_comes() -> None:
    port = Port()
    (peer,) = port.peers(1)
    for size in range(20):
        peer.holds(COUNTED_BYTES + size)
        port.pass_s(STILL_S - 2 * LOOK_S)
    assert not peer.problem
    port.pass_s(2 * LOOK_S)
    assert "nothing came for 30 s" in peer.problem
    assert port.unfinished.bytes == 0


def test_time_in_which_the_socket_is_not_read_does_not_count() -> None:
    port = Port()
    (peer,) = port.peers(1)
    peer.holds(MIB)
    peer.is_read = False
    port.pass_s(3 * STILL_S)
    peer.is_read = True
    port.pass_s(STILL_S - 2 * LOOK_S)
    assert not peer.problem
    port.pass_s(3 * LOOK_S)
    assert peer.problem


def test_a_stream_of_large_frames_is_not_one_slow_frame() -> None:
    """Each chunk ends one and begins another one, of which as much has come."""
    port = Port(None, is_crowded=lambda: True)
    busy, slow = port.peers(2)
    slow.holds(COUNTED_BYTES)
    for _ in range(round(2 * SLOW_S / LOOK_S)):
        busy.holds(COUNTED_BYTES, is_new=True)
        port.clock.advance(LOOK_S)
    assert (busy.problem == "", slow.problem != "") == (True, True)


def test_somebody_else_may_count_and_say_that_others_wait() -> None:
    crowded = False
    port = Port(None, is_crowded=lambda: crowded)
    peers = port.peers(2)
    for peer in peers:
        peer.holds(100 * MIB)
    port.pass_s(2 * SLOW_S)
    assert [peer.problem for peer in peers] == ["", ""]
    crowded = True
    port.pass_s(LOOK_S)
    assert all("others wait" in peer.problem for peer in peers)


@pytest.mark.parametrize("how", ["whole", "lost"])
def test_nothing_is_left_of_frames_that_are_whole_or_lost(how: str) -> None:
    port = Port()
    peers = port.peers(12)
    for peer in peers:
        peer.holds(MIB)
    for peer in peers:
        if how == "lost":
            port.unfinished.forget(peer)
        else:
            peer.is_read = True
            peer.holds(0, is_new=True)
    assert (port.unfinished.bytes, port.unfinished._waiting_bytes, port.unfinished._turn) == (0, 0, None)
    port.pass_s(1)
    assert port.unfinished._timer is None


def test_a_frame_that_became_whole_while_it_waited_is_read_on() -> None:
    """What TLS had taken from the socket before comes all the same."""
    port = Port()
    peers = port.peers(10)
    for peer in peers:
        peer.holds(MIB)
    assert not peers[9].is_read
    port.unfinished.on_held(peers[9], 0, 0, is_new=True)
    assert peers[9].is_read
