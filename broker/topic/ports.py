"""What the pure parts of a topic use of its shells: cursors, ledgers, time, connections. Protocols only. No IO.

The pure parts import these Protocols instead of the classes that implement them.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from broker.topic.unacked import UnackedBudget
from magnetar_core.runtime.types import Buffer, Cancellable
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import Position


class NextBroker(NamedTuple):
    """Where the clients of a topic that is closed go on, without a lookup (PIP-307)."""

    service_url: str = ""
    service_url_tls: str = ""


NOT_KNOWN: Final = NextBroker()
"""Clients look the topic up."""


class EntryLike(Protocol):
    """A stored entry (`managed_ledger.reading.reading.Entry`)."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def entry_id(self) -> int: ...

    @property
    def data(self) -> Buffer: ...

    @property
    def position(self) -> Position: ...


Entries = Sequence[EntryLike]


class CursorPort(Protocol):
    """A cursor, as a subscription uses it (`managed_ledger.cursors.managed_cursor.ManagedCursor`)."""

    name: str

    @property
    def durable(self) -> bool: ...

    @property
    def mark_delete_position(self) -> Position: ...

    @property
    def read_position(self) -> Position: ...

    @property
    def properties(self) -> Mapping[str, int]: ...

    @property
    def idle_since_ms(self) -> int:
        """Since when no consumer is attached, ms since 1970; 0 while there are some, or if it is not known."""
        ...

    def mark_idle(self, since_ms: int) -> None: ...

    def mark_active(self) -> None: ...

    def read(self, max_entries: int, max_bytes: int) -> Entries | Awaitable[Entries]: ...

    def read_again(self, first: Position, max_entries: int, max_bytes: int) -> Entries | Awaitable[Entries]:
        """Entries from *first* on, of at most so many positions of its ledger; the read position stays."""
        ...

    def has_more(self) -> bool: ...

    @property
    def range_count(self) -> int:
        """How many runs of entries were acknowledged out of order."""
        ...

    def mark_delete(self, position: Position, properties: Mapping[str, int] | None = None) -> None: ...

    def delete(self, positions: Iterable[Position]) -> None: ...

    def delete_run(self, ledger_id: int, first: int, last: int) -> None:
        """Acknowledge entries *first* to *last* of a ledger, of which it has the last one."""
        ...

    def leave_trimmed(self) -> None:
        """What only a compacted ledger has will not be read: the mark-delete position goes to the ledgers left."""
        ...

    def acknowledge_batch(self, position: Position, ack_set: Sequence[int], batch_size: int) -> bool: ...

    def batch_ack_set(self, position: Position) -> list[int] | None: ...

    def is_deleted(self, position: Position) -> bool: ...

    def moved_past(self, position: Position) -> None:
        """Entries up to *position* need not be read."""
        ...

    def rewind(self) -> None: ...

    async def reset(self, position: Position) -> None: ...

    def backlog(self) -> int: ...

    def unread(self) -> int:
        """Entries that were not read yet."""
        ...


class LedgerPort(Protocol):
    """A managed ledger, as a subscription uses it."""

    ledgers: LedgerList

    @property
    def is_terminated(self) -> bool: ...

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Entries | Awaitable[Entries]: ...


class Host(Protocol):
    """Time, background reads and memory budget, as a subscription uses them (`broker.topic.host.TopicHost`)."""

    def now_ms(self) -> int:
        """The wall clock."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable: ...

    def fetch(
        self, work: Awaitable[Entries], done: Callable[[Entries | None], None], size_bytes: int, room: "Room | None"
    ) -> None:
        """Wait for a cold read of at most *size_bytes*; then call `done(entries)`, or `done(None)` if it failed.

        The bytes are reserved meanwhile, also in *room* if all entries of the read go to that one connection.
        """
        ...

    @property
    def unacked(self) -> UnackedBudget:
        """What all subscriptions of the broker may have unacknowledged."""
        ...

    @property
    def read_room_bytes(self) -> int:
        """Bytes that may be read now for all clients together; nothing may be read at 0 or below."""
        ...

    def when_read_room(self, waiter: object, resume: Callable[[], None]) -> None:
        """Call *resume* once when there is room again; a further call with the same *waiter* adds nothing."""
        ...

    def guard(self, step: Callable[[], None], what: str) -> bool:
        """Run a background step; a failure is logged with the topic's name and returns False."""
        ...


class Room(Protocol):
    """What may be sent to a connection now. All its consumers share it."""

    @property
    def is_writable(self) -> bool:
        """False while the peer does not read: nothing more is dispatched to it."""
        ...

    @property
    def room_bytes(self) -> int:
        """Bytes that may be read for it now; 0 or below: none, or too few to be worth a read. It has its consumers
        dispatch (`Subscription.resume`) when there are enough again."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent to it and nothing is being read for it."""
        ...

    def reserve(self, size_bytes: int) -> None:
        """*size_bytes* are being read for it; negative when such a read has ended."""
        ...


class Outbox(Protocol):
    """The socket below a connection."""

    def write(self, buffer: Buffer) -> None:
        """Queue *buffer*; all that one turn of the loop brings leaves in one write."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    @property
    def unsent_bytes(self) -> int:
        """Flushed bytes that the socket has not taken yet."""
        ...

    async def until_drained(self) -> None:
        """Return when the socket takes bytes again."""
        ...

    def close(self) -> None:
        """Send what is queued, then close."""
        ...

    async def is_alive(self) -> bool:
        """Send a PING and wait for any answer; without one the connection is closed and the result is False."""
        ...


Spawn = Callable[[Coroutine[Any, Any, None], str], object]
