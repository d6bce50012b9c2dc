"""What one client makes the broker hold: when its socket is not read, and when it is read again."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.arrivals import Arrivals
from broker.binary.flow import (
    ARRIVALS_ALL_MAX,
    ARRIVALS_MAX,
    LARGE_COMMAND_BYTES,
    OUTBOX_HIGH_BYTES,
    REQUESTS_MAX,
    ClientFlow,
)
from broker.memory_budget import MemoryBudget
from broker.settings.config import BrokerConfig
from magnetar_core.runtime.clock import Timer
from tests.support.manual_clock import ManualClock

BUDGET_BYTES = 1_000_000


class FakeSocket:
    """Notes whether it is read; also the holder that is asked to count again."""

    unsent_bytes = 0

    def __init__(self) -> None:
        self._is_read = True
        self.sent: list[bytes] = []

    def reads(self) -> bool:
        return self._is_read

    def write(self, buffer: Any) -> None:
        self.sent.append(bytes(buffer))

    def pause_reading(self) -> None:
        self._is_read = False

    def resume_reading(self) -> None:
        self._is_read = True

    async def until_drained(self) -> None: ...

    def close(self) -> None: ...

    async def is_alive(self) -> bool:
        return True

    def recount(self) -> None: ...


class FakeBroker:
    def __init__(self) -> None:
        self.config = BrokerConfig(max_pending_publishes=10)
        self.clock = ManualClock()
        self.publishes = MemoryBudget(BUDGET_BYTES, self.clock.call_later)
        self.reads = MemoryBudget(BUDGET_BYTES, self.clock.call_later)
        self.arrivals = Arrivals(self.clock)

    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self.clock.call_later(delay_ms / 1000, callback)


def make() -> tuple[ClientFlow, FakeSocket, FakeBroker]:
    broker, socket = FakeBroker(), FakeSocket()
    return ClientFlow(broker, socket), socket, broker


def publish(flow: ClientFlow, count: int, size_bytes: int) -> None:
    flow.on_publish(count, size_bytes)
    if not flow.is_paused:
        flow.throttle()


def test_too_many_sends_stop_the_reading_until_half_are_answered() -> None:
    flow, socket, _ = make()
    publish(flow, 10, 10)
    assert socket.reads()
    publish(flow, 1, 1)
    assert not socket.reads()
    for _ in range(5):
        flow.on_published(1)
    assert not socket.reads()
    flow.on_published(1)
    assert socket.reads()


def test_one_client_takes_no_more_than_its_share_of_the_memory_for_sends() -> None:
    flow, socket, broker = make()
    publish(flow, 1, BUDGET_BYTES // 2)
    assert socket.reads()
    publish(flow, 1, 1)
    assert not socket.reads()
    assert broker.publishes.used_bytes == BUDGET_BYTES // 2 + 1


def test_too_many_requests_stop_the_reading() -> None:
    flow, socket, _ = make()
    for _ in range(REQUESTS_MAX + 1):
        flow.on_request()
    assert not socket.reads()
    for _ in range(REQUESTS_MAX // 2 + 1):
        flow.on_answer()
    assert socket.reads()


def test_many_clients_may_come_to_their_topics_at_once() -> None:
    flow, socket, broker = make()
    for _ in range(ARRIVALS_MAX):
        flow.on_request(arrives=True)
    assert socket.reads()
    flow.on_request(arrives=True)
    assert not socket.reads()
    for _ in range(ARRIVALS_MAX // 2 + 1):
        flow.on_answer(arrives=True)
    assert socket.reads()
    assert broker.arrivals.total == ARRIVALS_MAX // 2


def test_arrivals_of_others_leave_a_share() -> None:
    flow, socket, broker = make()
    broker.arrivals.total = ARRIVALS_ALL_MAX
    for _ in range(REQUESTS_MAX):
        flow.on_request(arrives=True)
    assert socket.reads()
    flow.on_request(arrives=True)
    assert not socket.reads()
    broker.arrivals.total -= 1_000  # others are answered
    flow.on_answer(arrives=True)
    assert socket.reads()


def test_requests_of_a_lost_connection_do_not_count() -> None:
    flow, socket, broker = make()
    for _ in range(3):
        flow.on_request(arrives=True)
    flow.on_lost(socket)
    flow.on_answer(arrives=True)  # of one whose work went on
    assert broker.arrivals.total == 0


def test_a_large_command_counts_like_a_message_until_it_is_answered() -> None:
    flow, socket, broker = make()
    flow.on_command(LARGE_COMMAND_BYTES - 1)
    assert flow.command_bytes == 0
    flow.on_command(LARGE_COMMAND_BYTES)
    assert flow.command_bytes == LARGE_COMMAND_BYTES
    flow.on_request(BUDGET_BYTES // 2 + 1, arrives=True)
    assert broker.publishes.used_bytes == BUDGET_BYTES // 2 + 1
    assert not socket.reads()
    flow.on_answer(BUDGET_BYTES // 2 + 1, arrives=True)
    assert (broker.publishes.used_bytes, socket.reads()) == (0, True)
    flow.on_request(100)
    flow.on_lost(socket)
    assert broker.publishes.used_bytes == 100, "its work has the command still"
    flow.on_answer(100)
    assert broker.publishes.used_bytes == 0


def test_while_there_is_no_room_for_a_frame_its_socket_is_not_read() -> None:
    flow, socket, _ = make()
    flow.wait_for_room(True)
    assert (socket.reads(), flow.is_paused_for_others) == (False, True)
    for _ in range(REQUESTS_MAX + 1):
        flow.on_request()
    flow.wait_for_room(False)
    assert not socket.reads(), "there is another reason now"
    for _ in range(REQUESTS_MAX + 1):
        flow.on_answer()
    assert socket.reads()


def test_who_does_not_take_its_answers_is_not_paused_for_others() -> None:
    flow, socket, _ = make()
    flow.write(bytes(OUTBOX_HIGH_BYTES + 1))
    flow.throttle()
    assert (socket.reads(), flow.is_paused_for_others) == (False, False)


def test_what_is_written_and_what_is_being_read_take_the_same_room() -> None:
    flow, socket, broker = make()
    flow.write(b"abc")
    flow.write_message(b"de", b"f")
    flow.reserve(4)
    assert flow.room_bytes == OUTBOX_HIGH_BYTES - 10
    assert broker.reads.used_bytes == 6
    flow.reserve(-4)
    flow.count_unsent(0, socket)
    assert flow.room_bytes == OUTBOX_HIGH_BYTES
    assert broker.reads.used_bytes == 0
    assert socket.sent == [b"abc", b"de", b"f"]


def test_more_released_than_reserved_is_a_defect() -> None:
    flow, _, _ = make()
    with pytest.raises(AssertionError):
        flow.reserve(-1)


def test_a_lost_connection_holds_and_sends_nothing_more() -> None:
    flow, socket, broker = make()
    flow.write(b"abc")
    flow.on_lost(socket)
    flow.write(b"late")
    assert socket.sent == [b"abc"]
    assert (broker.reads.used_bytes, broker.publishes.used_bytes) == (0, 0)
    assert not broker.reads.holders
