"""The call that says whether bookies can be switched off for good, all of them together.

    POST  /safe-to-remove     {"bookies": ["10.0.0.3:3181", "10.0.0.4:3181"]}

It reads all records, and the marks of ledgers that lack copies. The answer holds for the moment of the reading: new
ledgers may be made on a bookie that takes entries, so a bookie that is to go for good is drained.
"""

from collections.abc import Sequence
from typing import Any, Final

from autorecovery.admin.calls import Access, Call, CheckedCall, checked_bookie
from autorecovery.admin.schema import BOOLEAN, INTEGER, STRING, answer_of, array, closed, one_of
from autorecovery.admin.shapes import BOOKIES
from autorecovery.ledgers.catalogue import read_all
from autorecovery.lifecycle.removal import Answer, Kind, Risk, risk_of
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, UnknownBookie
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Corruption

SUBJECT: Final = "lifecycle"

_RISK: Final = answer_of(
    {
        "ledger_id": INTEGER,
        "kind": one_of(tuple(Kind)),
        "copies_left": {"type": ["integer", "null"], "description": "of the entries that would have fewest"},
        "why": STRING,
    },
    title="Ledger at risk",
)


class RemovalCalls:
    """The call. Used on the loop."""

    def __init__(self, store: MetadataStore, root: str, clock: Clock) -> None:
        self._ledgers = LedgerStore(store, root)
        self._marks = MarkBoard(store, root)
        self._directory = BookieDirectory(store, root, clock)
        self._states = BookieStates(store, root)

    def calls(self) -> Sequence[Call]:
        return (
            Call(
                method="POST", path="/safe-to-remove", name="isSafeToRemove", subject=SUBJECT, access=Access.READ,
                summary="Whether these bookies can be switched off for good, all of them together, and which ledgers "
                "would lose what. It changes nothing.",
                handler=self._ask, body=closed({"bookies": BOOKIES}),
                answer=answer_of(
                    {
                        "safe": BOOLEAN,
                        "bookies": array(STRING),
                        "ledgers": {"type": "integer", "description": "ledgers that name them or cannot be read"},
                        "totals": answer_of({str(kind): INTEGER for kind in Kind}),
                        "risks": array(_RISK, description="the worst first, 1,000 at most"),
                    },
                    title="Safe to remove",
                ),
                is_long=True, refusals={404: "no bookie has one of the ids, and no ledger names it"},
            ),
        )  # fmt: skip

    async def _ask(self, checked: CheckedCall) -> dict[str, Any]:
        leaving = frozenset(checked_bookie(bookie) for bookie in checked.body["bookies"])
        available = await self._directory.read_writable() | await self._directory.read_read_only()
        marked = frozenset([ledger_id async for ledger_id in self._marks.marked()])
        named: set[str] = set()
        answer = Answer()
        async for ledger_id, record in read_all(self._ledgers):
            if not isinstance(record, Versioned):
                answer.add(Risk(ledger_id, Kind.UNREADABLE, None, f"its record cannot be read: {record}"))
            elif its := leaving.intersection(record.metadata.bookies()):
                named |= its
                try:
                    lacking = await self._lacking(ledger_id) if ledger_id in marked else ()
                except Corruption as error:
                    answer.add(Risk(ledger_id, Kind.UNREADABLE, None, str(error)))
                else:
                    answer.add(risk_of(ledger_id, record.metadata, leaving, available, lacking))
        known = {*await self._states.bookies(), *available, *named}
        if unknown := sorted(leaving - known):
            raise UnknownBookie(f"there is no bookie {', '.join(unknown)}; known are: {', '.join(sorted(known))}")
        return {
            "safe": answer.is_safe,
            "bookies": sorted(leaving),
            "ledgers": answer.ledgers,
            "totals": {str(kind): total for kind, total in answer.totals.items()},
            "risks": [
                {"ledger_id": risk.ledger_id, "kind": str(risk.kind), "copies_left": risk.copies_left, "why": risk.text}
                for risk in answer.risks
            ],
        }

    async def _lacking(self, ledger_id: int) -> tuple[str, ...]:
        mark = await self._marks.read(ledger_id)
        return () if mark is None else mark.mark.replicas
