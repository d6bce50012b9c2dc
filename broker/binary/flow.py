"""What one client makes the broker hold, and whether its socket is read. No IO and no clock.

Counted are: sends without a receipt, requests without an answer, bytes that the client has not taken, and bytes that
are being read for its consumers. (Frames of which only a part has come: `magnetar_core.bookkeeper.wire.unfinished`.)

Rules:

1. While too much of it waits, the socket is not read. Reading begins again at half of it, so that the socket is not
   switched on and off for every message.
2. Sends, and what clients do not take, are counted in the budgets of all clients together as well.
3. A client that reads is never disconnected because of what it makes the broker hold.
4. Nor is one that publishes faster than the rate of the broker: it is not read for so long. What is too fast for one
   topic is set aside as far as there is room for it (`broker.binary.held_sends`).
"""

from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from broker.memory_budget import Holder, MemoryBudget
from broker.settings.config import BrokerConfig
from broker.topic.clients.producer import Producer
from broker.topic.ports import Outbox
from broker.topic.rates.throttling import HOLD_STEP_MS, PublishHold
from broker.wire.frames import send_receipt
from magnetar_core.runtime.types import KIB, MIB, Buffer, Cancellable

# Requests of one connection that have no answer yet; each takes 6 KB. Above this number the socket is not read until
# half are answered.
REQUESTS_MAX: Final = 500

# The same of lookups and of clients that come to a topic. A client that reconnects asks for each of its topics at once,
# and those of a dead broker are waited for as long as its session lasts; what the client sends to its other topics
# meanwhile comes through the same socket.
ARRIVALS_MAX: Final = 10_000

# The same of all connections together: above it each may have `REQUESTS_MAX` only.
ARRIVALS_ALL_MAX: Final = 20_000

# Share of one connection in the memory for sends that storage has not answered: a fast client must not take all of it
# from the others.
PUBLISH_SHARE: Final = 0.5

# A command of this size counts like a message until it is answered; others are among the 6 KB of each.
LARGE_COMMAND_BYTES: Final = 16 * KIB

# Dispatch to a client pauses above HIGH bytes that it has not taken. A client on a slow link takes two megabytes in
# well under a keep-alive interval. All clients together have a limit of their own.
OUTBOX_HIGH_BYTES: Final = 2 * MIB

# Entries are read for a client when so much of HIGH is free: with less, large batches would be read one or two at a
# time, and each read costs the same.
READ_ROOM_BYTES: Final = OUTBOX_HIGH_BYTES // 2

# The socket reports when it has come from above PAUSE to below LOW: a client with more to take than PAUSE has no room
# for reads, so dispatch always hears of it when there is room again.
OUTBOX_PAUSE_BYTES: Final = OUTBOX_HIGH_BYTES - READ_ROOM_BYTES
OUTBOX_LOW_BYTES: Final = 512 * KIB

assert OUTBOX_LOW_BYTES < OUTBOX_PAUSE_BYTES


class Arrivals(Protocol):
    """The lookups of all connections, and clients that come to topics, which have no answer yet (`broker.arrivals`)."""

    total: int

    def work_for(self, source: Hashable) -> None: ...

    def looking_up(self) -> AbstractAsyncContextManager[None]: ...


class FlowPort(Protocol):
    """The limits that the connections of a broker share."""

    config: BrokerConfig
    publishes: MemoryBudget
    """Sends of all clients that have no receipt yet."""
    reads: MemoryBudget
    """Reads under way, and frames that the clients have not taken yet."""

    @property
    def arrivals(self) -> Arrivals: ...

    def now_ms(self) -> int: ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable: ...


class ClientFlow:
    """The counts of one connection, and the decision to read its socket or not."""

    __slots__ = (
        "_arrivals",
        "_broker",
        "_holds",
        "_outbox",
        "_publish_bytes",
        "_publishes",
        "_requests",
        "_waits_for_room",
        "command_bytes",
        "is_closed",
        "is_paused",
        "reserved_bytes",
        "unsent_bytes",
    )

    def __init__(self, broker: FlowPort, outbox: Outbox) -> None:
        self.is_closed = False
        self.is_paused = False
        """The socket is not read (rule 1)."""
        self.unsent_bytes = 0
        """Written and not taken by the socket, as last counted."""
        self.reserved_bytes = 0
        """Being read from storage for this client's consumers."""
        self._broker = broker
        self._holds: dict[PublishHold, None] = {}
        """Rates that are used up; the socket is not read until all of them have something left (rule 4)."""
        self.command_bytes = 0
        """The size of the command that is being worked on, if it is a large one."""
        self._outbox = outbox
        self._waits_for_room = False
        """There is no room for the rest of the frame that has begun."""
        self._requests = 0
        """Requests that wait for their answers, but for those of `_arrivals`."""
        self._arrivals = 0
        """Lookups, and clients that come to topics, that wait for their answers."""
        self._publishes = 0
        """Sends that are not answered yet."""
        self._publish_bytes = 0
        """The bytes of those sends, and of large requests."""

    @property
    def room_bytes(self) -> int:
        """How much may be dispatched to this client now; none at 0 and below."""
        return OUTBOX_HIGH_BYTES - self.unsent_bytes - self.reserved_bytes

    @property
    def has_room_to_read(self) -> bool:
        """Whether there is room enough to read entries for it."""
        return self.room_bytes >= READ_ROOM_BYTES

    # -------------------------------------------------------------------------------- out

    # The last two are called for every receipt and message: they count in place instead of calling others.

    def write(self, frame: bytes) -> None:
        """Send *frame*; nothing is sent once the connection is closed."""
        if not self.is_closed:
            size_bytes = len(frame)
            self.unsent_bytes += size_bytes
            self._broker.reads.used_bytes += size_bytes
            self._outbox.write(frame)

    def on_stored(
        self, producer: Producer, sequence_id: int, highest: int, ledger_id: int, entry_id: int, size_bytes: int
    ) -> None:
        """Send the receipt of a message (`broker.topic.clients.producer.ProducerSink`)."""
        if not self.is_closed:
            receipt = send_receipt(producer.producer_id, sequence_id, highest, ledger_id, entry_id)
            self.unsent_bytes += len(receipt)
            self._broker.reads.used_bytes += len(receipt)
            self._outbox.write(receipt)
        self.on_published(size_bytes)

    def write_message(self, head: bytes, entry: Buffer) -> None:
        """Send a frame whose parts are *head* and *entry*, without joining them."""
        if not self.is_closed:
            size_bytes = len(head) + len(entry)
            self.unsent_bytes += size_bytes
            self._broker.reads.used_bytes += size_bytes
            self._outbox.write(head)
            self._outbox.write(entry)

    def count_unsent(self, unsent_bytes: int, holder: Holder) -> None:
        """The client has taken all but *unsent_bytes*. *holder* is asked to count again while any are left."""
        assert unsent_bytes >= 0
        reads = self._broker.reads
        reads.give(self.unsent_bytes - unsent_bytes)
        self.unsent_bytes = unsent_bytes
        if unsent_bytes:
            reads.holders[holder] = None
        else:
            reads.holders.pop(holder, None)

    def reserve(self, size_bytes: int) -> None:
        """So many bytes are being read for this client or, if negative, are no longer."""
        self.reserved_bytes += size_bytes
        assert self.reserved_bytes >= 0, "more was released than was reserved"

    # -------------------------------------------------------------------------------- in

    @property
    def is_paused_for_others(self) -> bool:
        """Whether the socket is not read, and not because the client does not take its answers."""
        return self.is_paused and self.unsent_bytes <= OUTBOX_HIGH_BYTES

    def wait_for_room(self, waits: bool) -> None:
        """Whether there is no room for the rest of the frame that has begun."""
        self._waits_for_room = waits
        if not self.is_closed:
            self.throttle()

    def on_command(self, size_bytes: int) -> None:
        """A command of that size is worked on; what waits for an answer to it keeps it."""
        self.command_bytes = size_bytes if size_bytes >= LARGE_COMMAND_BYTES else 0

    def on_publish(self, count: int, size_bytes: int) -> None:
        """*count* sends go to storage. The caller calls `throttle` when they are on their way."""
        assert count > 0
        self._publishes += count
        self._publish_bytes += size_bytes
        self._broker.publishes.used_bytes += size_bytes

    def on_published(self, size_bytes: int) -> None:
        """A send is answered, or needs no answer any more. Called for every message."""
        self._publishes -= 1
        self._publish_bytes -= size_bytes
        publishes = self._broker.publishes
        publishes.used_bytes -= size_bytes
        assert publishes.used_bytes >= 0, "more was given back than was taken"
        if self.is_paused:
            self.throttle()

    def on_request(self, size_bytes: int = 0, *, arrives: bool = False) -> None:
        """A request waits for its answer; *arrives*: a lookup, or a client that comes to a topic. *size_bytes*: of a
        large one, which counts as a message does."""
        self._publish_bytes += size_bytes
        self._broker.publishes.used_bytes += size_bytes
        if arrives:
            self._arrivals += 1
            self._broker.arrivals.total += 1
        else:
            self._requests += 1
        if not self.is_paused:
            self.throttle()

    def on_answer(self, size_bytes: int = 0, *, arrives: bool = False) -> None:
        """A request that waited is answered."""
        self._publish_bytes -= size_bytes
        self._broker.publishes.give(size_bytes)
        if self.is_closed:  # `on_lost` has counted it
            return
        if arrives:
            self._arrivals -= 1
            self._broker.arrivals.total -= 1
        else:
            self._requests -= 1
        assert min(self._requests, self._arrivals) >= 0, "more requests were answered than asked"
        if self.is_paused:
            self.throttle()

    def hold(self, hold: PublishHold) -> None:
        """Do not read the socket while *hold* says so: what its client publishes has used it up (rule 4)."""
        if hold in self._holds:
            return
        self._holds[hold] = None
        if len(self._holds) == 1:
            self._check_holds()
        elif not self.is_paused:
            self.throttle()

    def _check_holds(self) -> None:
        """Go on, or look again when the longest wait is over."""
        if self.is_closed:
            self._holds.clear()
            return
        now_ms = self._broker.now_ms()
        waits = {hold: hold.wait_ms(now_ms) for hold in self._holds}
        self._holds = dict.fromkeys(hold for hold, left in waits.items() if left > 0)
        if self._holds:
            self._broker.call_later(min(max(waits.values()), HOLD_STEP_MS), self._check_holds)
        self.throttle()

    def throttle(self) -> None:
        """Stop or resume reading the socket, by what waits now (rule 1)."""
        publishes = self._broker.publishes
        limit, share = self._broker.config.max_pending_publishes, publishes.limit_bytes * PUBLISH_SHARE
        assert self._publishes >= 0, "more sends were answered than came"
        assert self._publish_bytes >= 0, "more bytes of sends were answered than came"
        if not self.is_paused:
            if (
                self._publishes > limit
                or self._publish_bytes > share
                or self._requests > REQUESTS_MAX
                or self._arrivals > self._arrivals_max()
                or self.unsent_bytes > OUTBOX_HIGH_BYTES
                or self._holds
                or self._waits_for_room
            ):
                self._pause()
            elif publishes.is_full and self._publish_bytes:
                self._pause()
                publishes.wait(self, self._resume)
        elif (
            self._publishes <= limit // 2
            and self._publish_bytes <= share // 2
            and self._requests <= REQUESTS_MAX // 2
            and self._arrivals <= self._arrivals_max() // 2
            # Not OUTBOX_LOW_BYTES: between the two marks the socket may have nothing more to report.
            and self.unsent_bytes <= OUTBOX_HIGH_BYTES
            and not self._holds
            and not self._waits_for_room
        ):
            if publishes.is_full and self._publish_bytes:
                publishes.wait(self, self._resume)
            elif not publishes.is_waiting(self):
                self._resume()

    def _arrivals_max(self) -> int:
        return ARRIVALS_MAX if self._broker.arrivals.total <= ARRIVALS_ALL_MAX else REQUESTS_MAX

    def _pause(self) -> None:
        self.is_paused = True
        self._outbox.pause_reading()

    def _resume(self) -> None:
        self.is_paused = False
        if not self.is_closed:
            self._outbox.resume_reading()

    def on_lost(self, holder: Holder) -> None:
        """The connection is gone: nothing it makes the broker hold is left but sends that are on their way."""
        self.is_closed = True
        self._broker.arrivals.total -= self._arrivals
        self._requests = self._arrivals = 0
        self._broker.publishes.forget(self)
        self.count_unsent(0, holder)
