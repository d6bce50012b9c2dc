"""Reads the entries of one subscription and has them dispatched. No IO.

    event ──▶ run ──▶ dispatcher.next_read ──▶ rates ──▶ room ──▶ cursor ──▶ dispatcher.on_entries
               ▲                                                     │ cold         │
               └── timer, room again, turn in the group, entries ◀───┴──────────────┘

Rules:

1. After every event the pump runs: it reads and dispatches until no consumer can take more, no entry is left, or a
   cold read is under way. So no event leaves a consumer with permits and backlog waiting.
2. An exception while dispatching loses no message. Which entries were sent before it cannot be known, so the
   subscription disconnects all consumers; their clients reconnect with growing delays, and everything unacknowledged is
   delivered again.
3. Entries are read only if there is room for them: at the consumers' connections, and in the broker's budget for what
   is read and not sent yet. Without room the subscription queues for it behind other subscriptions. A client whose
   connection is idle gets one entry all the same, so that clients that read never wait for clients that do not.
4. A read that has failed is tried again after a pause that grows, and nothing brings it before: entries that are lost
   would be asked for thousands of times a second, since what goes on at the topic runs the pump.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from broker.topic.compaction.compacted_view import CompactedCursor
from broker.topic.dispatchers.dispatcher import Dispatcher, DispatchLimits, Read
from broker.topic.ports import CursorPort, Entries, Host, LedgerPort, Room
from broker.topic.rates.resource_group import ResourceGroup
from broker.topic.reading.read_rates import ReadRates
from magnetar_core.runtime.types import Cancellable

# Reads that one event may cause before others get their turn on the loop: 10 × 100 entries are about 10 ms.
READS_PER_EVENT_MAX: Final = 10

# How long to wait after a cold read has failed; doubles from the first to the last. Bookies restart in seconds.
READ_RETRY_FIRST_MS: Final = 100
READ_RETRY_LAST_MS: Final = 5_000


class Pump:
    """Moves entries from the cursor of a subscription to its dispatcher."""

    def __init__(
        self,
        name: str,
        cursor: CursorPort,
        ledger: LedgerPort,
        host: Host,
        limits: DispatchLimits,
        rates: ReadRates,
        on_failure: Callable[[], None],
    ) -> None:
        """*name*: of the subscription; *on_failure* disconnects its consumers (rule 2)."""
        self.cursor = cursor
        self.limits = limits
        self.rates = rates
        self.dispatcher: Dispatcher | None = None
        """Where entries go. None while nobody is there or may come: nothing is read then."""
        self.is_reading = False
        """Whether entries are read from the bookies."""
        self.is_replaying = False
        """Whether entries that were delivered before are read from the bookies again."""
        self.waits_for_room = False
        self.entries_read = 0
        self.entries_read_cold = 0
        """Those of them that memory did not have."""
        self.reads_failed = 0
        self.last_consumed_ms = 0
        self._dispatching = f"dispatching of {name}"
        self._ledger = ledger
        self._host = host
        self._on_failure = on_failure
        self._timer: Cancellable | None = None
        self._timer_at_ms = 0
        self._retry_ms = 0
        self._retry: Cancellable | None = None  # rule 4

    # -------------------------------------------------------------------------------- what it works with

    def begin(self, dispatcher: Dispatcher) -> None:
        """Entries go to *dispatcher* from the next event on."""
        self.dispatcher = dispatcher

    def stop(self) -> None:
        """Entries go nowhere any more, nor does what is being read."""
        self.dispatcher = None
        self.rates.settle()

    def close(self) -> None:
        """The subscription ends, with nobody there: no more timers, and it is not kept alive from here."""
        self._on_failure = lambda: None
        self.rates.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def use_cursor(self, cursor: CursorPort) -> None:
        """Go on with *cursor*, which stands for the same subscription."""
        self.cursor = cursor
        if self.dispatcher is not None:
            self.dispatcher.use_cursor(cursor)

    def use_limits(self, limits: DispatchLimits) -> None:
        """The namespace's policies changed."""
        self.limits = limits
        if self.dispatcher is not None:
            self.dispatcher.use_limits(limits)
            self.run()

    def change_group(self, former_group: ResourceGroup | None) -> None:
        """The topic is in another resource group than *former_group*."""
        if former_group is not None:
            former_group.forget(self)
        self.run()

    # -------------------------------------------------------------------------------- reading

    def run(self) -> None:
        """Rule 1. Never raises: an exception would reach the caller whose event started the pump."""
        if not self._host.guard(self._run, self._dispatching):
            self._on_failure()

    def run_soon(self) -> None:
        """The same in the next turn of the loop: what made the event is still at work."""
        if self.dispatcher is not None:
            self._run_at(self._host.now_ms())

    def _run(self) -> None:
        """Read and dispatch until nobody takes more, a rate holds, or a read has to wait for bookies.

        After READS_PER_EVENT_MAX reads the rest follows in a later turn of the loop.
        """
        dispatcher = self.dispatcher
        self.waits_for_room = False
        if dispatcher is None or self.is_reading or self._retry is not None:
            return
        rates = self.rates
        for _ in range(READS_PER_EVENT_MAX):
            read: Read | None = dispatcher.next_read()
            if read is None:
                self._set_timer()
                return
            is_limited = rates.are_set and self._rates_apply()
            if is_limited:
                now_ms = self._host.now_ms()
                wait_ms = rates.wait_ms(now_ms)
                if wait_ms > 0:
                    self._run_at(now_ms + math.ceil(wait_ms))
                    return
                if not rates.has_turn(self, self.run):
                    return
                read = rates.within(read, now_ms)
            room = dispatcher.room_of_reads()
            read = within_room(read, self._host.read_room_bytes, room)
            if read is None:
                self._host.when_read_room(self, self.run)
                self.waits_for_room = True
                return
            if is_limited:
                rates.reserve(read)
            answer = self._read(read)
            if not isinstance(answer, Sequence):
                self.is_reading = True
                self.is_replaying = read.first is not None
                self._host.fetch(answer, partial(self._on_fetched, dispatcher, read), read.bytes_max, room)
                return
            self._on_entries(dispatcher, read, answer)
            if not answer and read.first is None:
                self._set_timer()
                return
        self._run_at(self._host.now_ms())

    def _rates_apply(self) -> bool:
        """Whether the rates hold for this subscription, which may be about at the end."""
        return self.limits.throttles_caught_up or self.cursor.unread() > self.limits.backlogged_entries

    def _read(self, read: Read) -> Entries | Awaitable[Entries]:
        if read.first is None:
            return self.cursor.read(read.entries_max, read.bytes_max)
        return self.cursor.read_again(read.first, read.entries_max, read.bytes_max)

    def _on_fetched(self, dispatcher: Dispatcher, read: Read, entries: Entries | None) -> None:
        """A cold read has ended; None: it has failed (rule 4)."""
        self.is_reading = self.is_replaying = False
        if entries is None:
            self.rates.settle()
            self.reads_failed += 1
            self._retry_ms = min(max(self._retry_ms * 2, READ_RETRY_FIRST_MS), READ_RETRY_LAST_MS)
            self._retry = self._host.call_later(self._retry_ms, self._try_again)
            return
        self._retry_ms = 0
        self.entries_read_cold += len(entries)
        is_wanted = dispatcher is self.dispatcher and not self._is_overtaken(read, entries)
        step = partial(self._on_entries, dispatcher, read, entries)
        if is_wanted and not self._host.guard(step, self._dispatching):
            self._on_failure()
            return
        self.rates.settle()  # what a dropped read reserved
        self.run()
        if not entries and self._ledger.is_terminated:  # the compacted ledger had nothing more
            self.announce_end()

    def _is_overtaken(self, read: Read, entries: Entries) -> bool:
        """Whether the cursor was rewound after *entries* were read and before they are dispatched.

        Then they are dropped: the cursor reads them again, after the entries before them.
        """
        return read.first is None and bool(entries) and self.cursor.read_position <= entries[-1].position

    def _on_entries(self, dispatcher: Dispatcher, read: Read, entries: Entries) -> None:
        """Dispatch what was read, and count what was sent."""
        is_throttled = self.rates.are_throttled and self._rates_apply()
        dispatcher.on_entries(read, entries)
        now_ms = self._host.now_ms()
        messages = size_bytes = 0
        for consumer in dispatcher.take_served():
            sent, sent_bytes = consumer.note_sent(now_ms)
            messages, size_bytes = messages + sent, size_bytes + sent_bytes
        if entries:
            self.entries_read += len(entries)
            self.last_consumed_ms = now_ms
        self.rates.spend(len(entries), messages, size_bytes, now_ms, is_throttled=is_throttled)

    def announce_end(self) -> None:
        """Tell consumers, each once, that the terminated topic holds nothing more for them."""
        if self.cursor.backlog() or (isinstance(self.cursor, CompactedCursor) and self.cursor.has_open):
            return
        for consumer in () if self.dispatcher is None else self.dispatcher.consumers:
            if not consumer.knows_end:
                consumer.knows_end = True
                consumer.sink.on_end_of_topic(consumer)

    # -------------------------------------------------------------------------------- timers

    def _set_timer(self) -> None:
        at_ms = None if self.dispatcher is None else self.dispatcher.next_timer_ms()
        if at_ms is not None:
            self._run_at(at_ms)

    def _run_at(self, at_ms: int) -> None:
        """Run at *at_ms* (wall clock) at the latest. There is one timer; the earliest time counts."""
        if self._timer is not None:
            if self._timer_at_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = at_ms
        self._timer = self._host.call_later(max(at_ms - self._host.now_ms(), 0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.run()

    def _try_again(self) -> None:
        self._retry = None
        self.run()

    def end_pause(self) -> None:
        """End the pause after a failed read, and begin again with the shortest one: what is read next are other entries
        than those that failed."""
        self._retry_ms = 0
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    @property
    def is_stuck(self) -> bool:
        """Whether rule 1 is broken: a consumer could take an entry and no read or timer is under way (for tests)."""
        if self.dispatcher is None or self.is_reading or self.waits_for_room:
            return False
        if self._timer is not None or self._retry is not None or self.rates.is_waiting(self):
            return False
        return self.dispatcher.next_read() is not None


def within_room(read: Read, room_bytes: int, room: Room | None) -> Read | None:
    """*read*, cut to the *room_bytes* that the broker's budget has; None: it has to wait (rule 3). *room*: of the one
    connection that gets all entries of the read, if there is one."""
    if room_bytes <= 0:
        return read._replace(entries_max=1) if room is not None and room.is_idle else None
    return read._replace(bytes_max=room_bytes) if room_bytes < read.bytes_max else read
