"""What a broker writes next into its log, and how much at once. No IO and no clock.

    each WRITE_S of `rosters.log`   topics that are new or gone, then ledgers that changed, up to EDITS_BYTES_MAX
    each POSITIONS_S                positions of cursors that moved, up to POSITIONS_BYTES_MAX

Rules:

1. What does not fit waits for the next time; it is written as it is then, not as it was.
2. Positions alone are written seldom: nobody needs them to take a topic over. Where nothing else is written, so that
   the log is closed, they open it only each POSITIONS_CLOSED_S.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from broker.transfer.rosters.roster import Roster, edits, holding_edits
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.ledgers.holdings import Changes, Holdings

# Bytes of one time: ten thousand topics that were opened within a second are written within four.
EDITS_BYTES_MAX: Final = 512 * 1024

POSITIONS_S: Final = 4.0
POSITIONS_CLOSED_S: Final = 300.0

# Bytes of one time: 16 KB a second. With ten thousand cursors that all move each is written once in some two minutes,
# and the log does not have to begin anew more often than twice an hour.
POSITIONS_BYTES_MAX: Final = 64 * 1024
POSITIONS_AT_ONCE: Final = 500


class EditPlan:
    """Decides what is written into one log, from its beginning on."""

    def __init__(self, roster: Roster, holdings_of: Callable[[str], Holdings | None], changes: Changes) -> None:
        """*roster*: what the log says by now; *holdings_of* gives those of a topic that is open here, by its full name;
        *changes*: names of managed ledgers whose holdings changed."""
        self._roster = roster
        self._holdings_of = holdings_of
        self._changes = changes
        self._reported: Mapping[str, int] | None = None
        self._changed: dict[str, None] = {}
        self._positions_s = float("-inf")
        changes.is_on = True

    def edits(self, serves: Mapping[str, int] | None, now_s: float, *, is_open: bool) -> Iterator[bytes]:
        """What is written now. The caller applies each edit to the roster before it asks for the next one.

        *serves*: topics and traffic, the same object as long as nothing changed; None: nothing is written. *is_open*:
        whether the log is being written.
        """
        if serves is None:
            return
        used_bytes = 0
        if serves is not self._reported:
            for edit in edits(self._roster.topics, serves, self._holdings_of):
                yield edit
                used_bytes += len(edit)
                if used_bytes >= EDITS_BYTES_MAX:
                    return  # rule 1: `_reported` stays what it was
            self._reported = serves
        self._changed.update(dict.fromkeys(self._changes.take_ledgers()))
        while self._changed and used_bytes < EDITS_BYTES_MAX:
            for edit in self._holding_edits(list(self._changed)[:POSITIONS_AT_ONCE], self._changed):
                yield edit
                used_bytes += len(edit)
        if now_s - self._positions_s >= (POSITIONS_S if is_open or used_bytes else POSITIONS_CLOSED_S):
            self._positions_s = now_s
            used_bytes = 0
            while used_bytes < POSITIONS_BYTES_MAX and (moved := self._changes.take_moved(POSITIONS_AT_ONCE)):
                for edit in self._holding_edits(moved, {}):
                    yield edit
                    used_bytes += len(edit)

    def _holding_edits(self, names: list[str], waiting: dict[str, None]) -> Iterator[bytes]:
        """The edits for the holdings of managed ledgers by *names*, which are taken out of *waiting*."""
        current: dict[str, Holdings] = {}
        for name in names:
            waiting.pop(name, None)
            topic = TopicName.of_managed_ledger(name).full
            holdings = self._holdings_of(topic) if topic in self._roster.topics else None
            if holdings is not None:
                current[topic] = holdings
        yield from holding_edits(self._roster.holdings, current)
