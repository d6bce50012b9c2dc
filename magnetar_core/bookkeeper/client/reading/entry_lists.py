"""Which entries of a ledger a bookie has, as it lists them itself: an index is read there, and no entry.

    connect (TLS where it is set) ──▶ GET_LIST_OF_ENTRIES ──▶ one answer, or silence ──▶ closed

Only the third protocol has this request, and the client's other connections speak the second one, so each question has
a connection of its own: it is asked a few times for a ledger, by checks that take days.

Apache's bookies with `DbLedgerStorage`, which is what Pulsar runs, take the request and never answer. A bookie that was
silent is therefore not asked again for a while: what it has is unknown, at once.
"""

import asyncio
from typing import Final, TypeAlias

from magnetar_core.bookkeeper.client.errors import (
    BookieUnavailable,
    NoSuchLedger,
    OperationTimeout,
    error_of,
)
from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.client.wire.questions import Questions
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import MalformedFrame

# How long a bookie that did not answer is left alone. Each of its ledgers would cost a whole time-out otherwise, and a
# check of 10,000 ledgers half a day; a bookie that was only slow is asked again within the check.
_SILENT_S: Final = 600.0

Group: TypeAlias = tuple[int, int, int, int]
"""First start, last start, size, period: runs of `size` entries, `period` apart (`codec_v3.Availability`)."""


class EntryLists:
    """Asks bookies for their lists. One for all ledgers of a client. Used on the loop."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._silent_until_s: dict[str, float] = {}

    async def of(self, bookie_id: str, ledger_id: int) -> list[Group]:
        """The entries of *ledger_id* that *bookie_id* has; none for a ledger that it does not know.

        Raises BookKeeperError: nobody knows.
        """
        now_s = self._pool.clock.monotonic()
        if self._silent_until_s.get(bookie_id, now_s) > now_s:
            raise OperationTimeout(f"bookie {bookie_id} did not answer when it was asked for a list of entries")
        self._silent_until_s.pop(bookie_id, None)
        what = f"bookie {bookie_id}, list of entries of ledger {ledger_id}"
        try:
            wire = await Questions.connected(self._pool, bookie_id)
        except (OSError, MetadataError, TimeoutError) as error:
            why = "no connection in time" if isinstance(error, TimeoutError) else error
            raise BookieUnavailable(f"bookie {bookie_id} cannot be reached: {why}") from error
        try:
            async with asyncio.timeout(self._pool.config.timeout_s):
                frame = await wire.ask(v3.list_of_entries_request(1, ledger_id))
            return _parse_answer(frame, ledger_id, what)
        except NoSuchLedger:
            return []
        except TimeoutError:
            self._silent_until_s[bookie_id] = self._pool.clock.monotonic() + _SILENT_S
            raise OperationTimeout(
                f"{what}: no answer within {self._pool.config.timeout_s:g} s; Apache's bookies with DbLedgerStorage "
                "never answer this"
            ) from None
        except (ConnectionError, MalformedFrame) as error:
            raise BookieUnavailable(f"{what}: {error or 'the connection broke'}") from error
        finally:
            wire.close()


def _parse_answer(frame: memoryview, ledger_id: int, what: str) -> list[Group]:
    """The entries that an answer lists, as groups of ids. *what* was asked, for errors.

    Raises MalformedFrame, and the BookKeeperError that the bookie answered with.
    """
    response = v3.parse_response(frame)
    if response.header.operation != v3.GET_LIST_OF_ENTRIES:
        raise MalformedFrame(f"an answer to operation {response.header.operation}, which was not asked")
    listed = response.getListOfEntriesOfLedgerResponse
    # Some refusals are told in the header's status alone, others only in the operation's own part.
    status = response.status or (listed.status if response.HasField("getListOfEntriesOfLedgerResponse") else 0)
    if status:
        raise error_of(status, what, version=3)
    if listed.ledgerId != ledger_id:
        raise MalformedFrame(f"a list of ledger {listed.ledgerId}")
    return v3.decode_availability(listed.availabilityOfEntriesOfLedger)
