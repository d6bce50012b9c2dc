"""The list of a log's ledgers: what it may become, and its bytes. No IO.

    <root>/log   {"version": 1, "log": "<32 hex digits>", "term": 3, "leader": "<name>/<8 hex digits>",
                  "ledgers": [{"id": 17, "term": 2, "first": 1}, {"id": 21, "term": 3, "first": 4812}],
                  "leaving": [9]}

`log` names the log for ever: ledgers and snapshots carry it. `first` is the number of the ledger's first edit, so a
ledger's last edit is the one before the next ledger's first. `leaving` are ledgers that are dropped and perhaps not
deleted yet. The name of a leader is new each time a process starts, so that it knows its own writing again (I56).

Rules:

1. The list is created exclusively, and each change of it is a compare-and-set on the version that its author read or
   wrote last (I116). A term begins with one; so the leader before cannot change the list any more.
2. A ledger is listed before its first entry is written (I117), at the end of the list, with the term of its author.
3. Ledgers leave from the front only, never the last, and only behind snapshots of enough nodes (I122).
"""

import json
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.types import START_NEWER, Corruption

VERSION: Final = 1


class ListedLedger(NamedTuple):
    """One ledger of the log."""

    ledger_id: int
    term: int
    first_number: int


class LogList(NamedTuple):
    """The content of `<root>/log`."""

    log: str
    term: int
    leader: str
    ledgers: tuple[ListedLedger, ...] = ()
    leaving: tuple[int, ...] = ()

    @property
    def leader_name(self) -> str:
        return self.leader.rpartition("/")[0]

    def claimed(self, leader: str) -> "LogList":
        """The beginning of *leader*'s term."""
        return self._replace(term=self.term + 1, leader=leader)

    def with_ledger(self, ledger_id: int, first_number: int) -> "LogList":
        assert all(ledger.ledger_id != ledger_id and ledger.first_number <= first_number for ledger in self.ledgers), (
            self
        )
        return self._replace(ledgers=(*self.ledgers, ListedLedger(ledger_id, self.term, first_number)))

    def find(self, ledger_id: int) -> ListedLedger | None:
        return next((ledger for ledger in self.ledgers if ledger.ledger_id == ledger_id), None)

    def find_next(self, ledger_id: int) -> ListedLedger | None:
        """The ledger behind *ledger_id*, which is in the list."""
        next_index = [ledger.ledger_id for ledger in self.ledgers].index(ledger_id) + 1
        return self.ledgers[next_index] if next_index < len(self.ledgers) else None

    def droppable(self, own: int, others: Collection[int], copies: int) -> tuple[int, ...]:
        """The ledgers that may go (I122): ids from the front of the list.

        *own*: the last edit that the leader's snapshots cover; *others*: those of the other nodes that are there.
        """
        covered = sorted([*others], reverse=True)
        if len(covered) < copies - 1:
            return ()
        bound = min([own, *covered[: copies - 1]])
        gone: list[int] = []
        for ledger, following in zip(self.ledgers, self.ledgers[1:], strict=False):
            if following.first_number - 1 > bound:
                break
            gone.append(ledger.ledger_id)
        return tuple(gone)

    def without_ledgers(self, ledger_ids: Sequence[int]) -> "LogList":
        """The list without *ledger_ids*, which are leaving: they are to be deleted."""
        assert [ledger.ledger_id for ledger in self.ledgers[: len(ledger_ids)]] == list(ledger_ids), (
            "from the front only"
        )
        assert len(ledger_ids) < len(self.ledgers), "the last one stays"
        return self._replace(ledgers=self.ledgers[len(ledger_ids) :], leaving=(*self.leaving, *ledger_ids))

    def with_deleted(self, ledger_ids: Collection[int]) -> "LogList":
        return self._replace(leaving=tuple(leaving_id for leaving_id in self.leaving if leaving_id not in ledger_ids))


def encode_list(value: LogList) -> bytes:
    """The list as JSON, which people can read."""
    fields: dict[str, Any] = {
        "version": VERSION,
        "log": value.log,
        "term": value.term,
        "leader": value.leader,
        "ledgers": [
            {"id": ledger.ledger_id, "term": ledger.term, "first": ledger.first_number} for ledger in value.ledgers
        ],
        "leaving": list(value.leaving),
    }
    return json.dumps(fields).encode()


def decode_list(data: bytes, place: str) -> LogList:
    """Raises Corruption, which names *place*."""
    try:
        stored = json.loads(data)
        if stored["version"] != VERSION:
            raise Corruption(f"{place}: version {stored['version']} of the format, expected {VERSION}; {START_NEWER}")
        return LogList(
            str(stored["log"]),
            int(stored["term"]),
            str(stored["leader"]),
            tuple(ListedLedger(int(row["id"]), int(row["term"]), int(row["first"])) for row in stored["ledgers"]),
            tuple(int(leaving_id) for leaving_id in stored["leaving"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"{place}: not the list of a state log: {error!r}") from error
