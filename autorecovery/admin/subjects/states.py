"""Calls about the life of bookies: which state each is in, and the moves that an operator makes.

    GET  /bookies                    all of them
    GET  /bookies/{bookie}/state     one, with the ledgers that a failed drain left
    PUT  /bookies/{bookie}/state     {"state": "draining", "why": "old disks"}

`lifecycle` and `retirement` decide which moves are legal and what is checked before; the command line uses them, too.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from autorecovery.admin.calls import Access, Call, CheckedCall, JsonSchema, Refused, bookie_of
from autorecovery.admin.schema import INTEGER, STRING, answer_of, array, closed, one_of
from autorecovery.admin.shapes import LEDGER_WHY, MODE, TIME, WHY, ledgers_json, mode_of
from autorecovery.lifecycle.retirement import BookieLifecycle, StillNeeded
from autorecovery.lifecycle.turning import TurnBookie
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, UnknownBookie
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import IllegalMove, Lifecycle, State
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Corruption

SUBJECT: Final = "lifecycle"

# Questions to the metadata store under way for one answer.
_AT_ONCE: Final = 64

_UNREADABLE: Final = "unreadable"

_LIFE: Final[Mapping[str, JsonSchema]] = {
    "bookie": STRING,
    "state": one_of((*State, _UNREADABLE), description="unreadable: `why` says what is wrong with its node"),
    "mode": MODE,
    "by": {"type": "string", "description": "who made the last move"},
    "why": STRING,
    "since_ms": TIME,
    "began_ms": TIME,
    "reasons_total": {"type": "integer", "description": "ledgers that a failed drain could not copy"},
    "progress": {
        **answer_of(
            {
                "phase": STRING,
                "problem": STRING,
                "ledgers": INTEGER,
                "ledgers_left": INTEGER,
                "bytes": INTEGER,
                "bytes_left": INTEGER,
                "ledgers_per_minute": {"type": "number"},
                "eta_s": {"type": ["number", "null"]},
                "waiting": INTEGER,
                "waiting_ledgers": {"type": "object", "additionalProperties": STRING},
                "hopeless": INTEGER,
                "hopeless_ledgers": {"type": "object", "additionalProperties": STRING},
            },
            "phase", "problem", "ledgers", "ledgers_left", "bytes", "bytes_left", "ledgers_per_minute", "eta_s",
            "waiting", "waiting_ledgers", "hopeless", "hopeless_ledgers",
        ),
        "type": ["object", "null"],
        "description": "what the auditor tells of the drain; null while it tells nothing",
    },
}  # fmt: skip

BOOKIE: Final = answer_of(_LIFE, title="Bookie")
_TODO: Final[JsonSchema] = {
    "type": "string",
    "description": "after a bookie was made active: what is left to do for it to take entries, where that is something",
}
BOOKIE_STATE: Final = answer_of({**_LIFE, "reasons": array(LEDGER_WHY), "todo": _TODO}, "todo", title="Bookie state")

# States that an operator may ask for. `draining-failed` is refused with the reason: only the auditor finds that out.
_ASKED: Final = closed({"state": one_of(tuple(State)), "why": WHY}, "why")


class StateCalls:
    """The calls. Used on the loop."""

    def __init__(self, store: MetadataStore, root: str, clock: Clock, turn: TurnBookie) -> None:
        self._turn = turn
        self._lives = BookieLifecycle(store, root, clock)
        self._states = BookieStates(store, root)
        self._directory = BookieDirectory(store, root, clock)

    def calls(self) -> Sequence[Call]:
        unknown = {404: "no bookie has this id"}
        return (
            Call(
                method="GET", path="/bookies", name="listBookies", subject=SUBJECT, access=Access.READ,
                summary="Every bookie with its state, and how far drains are.",
                handler=self._list, answer=answer_of({"bookies": array(BOOKIE)}),
                query={"state": "only bookies in this state"},
            ),
            Call(
                method="GET", path="/bookies/{bookie}/state", name="getBookieState", subject=SUBJECT,
                access=Access.READ,
                summary="The state of one bookie: who set it, when and why; what a drain waits for.",
                handler=self._get, answer=BOOKIE_STATE, refusals=unknown,
            ),
            Call(
                method="PUT", path="/bookies/{bookie}/state", name="setBookieState", subject=SUBJECT,
                access=Access.WRITE,
                summary="Move a bookie: to draining, back to active, or, after a failed drain was mended, to drained. "
                "The last one reads all records first. A bookie of Apache's that the drain turned read-only is turned "
                "back when it is made active; `todo` says so where that fails.",
                handler=self._set, body=_ASKED, answer=BOOKIE_STATE, is_long=True,
                refusals=unknown
                | {409: "the move is not legal, or ledgers name the bookie: `state` has the present state, `ledgers` "
                   "those ledgers"},
            ),
        )  # fmt: skip

    async def _list(self, checked: CheckedCall) -> dict[str, Any]:
        wanted = checked.query.get("state")
        if wanted is not None and wanted not in (*State, _UNREADABLE):
            raise Refused(400, f"state {wanted[:80]!r} must be one of {', '.join(State)}, {_UNREADABLE}")
        writable, read_only = await self._directory.read_writable(), await self._directory.read_read_only()
        progress = await self._lives.progress()
        ids = sorted({*await self._states.bookies(), *writable, *read_only})
        bookies: list[dict[str, Any]] = []
        for first in range(0, len(ids), _AT_ONCE):
            bookies += await asyncio.gather(
                *(
                    self._facts(bookie_id, mode_of(bookie_id, writable, read_only), progress)
                    for bookie_id in ids[first : first + _AT_ONCE]
                )
            )
        for facts in bookies:
            del facts["reasons"]
        return {"bookies": [facts for facts in bookies if wanted in (None, facts["state"])]}

    async def _facts(self, bookie_id: str, mode: str, progress: Mapping[str, Any]) -> dict[str, Any]:
        try:
            life, state = (await self._states.read(bookie_id)).lifecycle, ""
        except Corruption as error:
            life, state = Lifecycle(why=str(error)), _UNREADABLE
        return {
            "bookie": bookie_id,
            "state": state or str(life.state),
            "mode": mode,
            "by": life.by,
            "why": life.why,
            "since_ms": life.since_ms or None,
            "began_ms": life.began_ms or None,
            "reasons_total": life.reasons_total,
            "reasons": [{"ledger_id": ledger_id, "why": why} for ledger_id, why in life.reasons],
            "progress": progress.get(bookie_id),
        }

    async def _get(self, checked: CheckedCall) -> dict[str, Any]:
        return await self._describe_bookie(bookie_of(checked))

    async def _describe_bookie(self, bookie_id: str) -> dict[str, Any]:
        writable, read_only = await self._directory.read_writable(), await self._directory.read_read_only()
        known = await self._states.bookies()
        if bookie_id not in {*known, *writable, *read_only}:
            raise UnknownBookie(f"there is no bookie {bookie_id}; known are: {', '.join(known) or 'none'}")
        return await self._facts(bookie_id, mode_of(bookie_id, writable, read_only), await self._lives.progress())

    async def _set(self, checked: CheckedCall) -> dict[str, Any]:
        bookie_id, why, by = bookie_of(checked), checked.body.get("why", ""), checked.caller.name
        await self._describe_bookie(bookie_id)
        to, todo = State(checked.body["state"]), ""
        try:
            if to is State.ACTIVE:
                _, todo = await self._lives.cancel(bookie_id, by, why, self._turn)
            elif to is State.DRAINED:
                await self._lives.finish(bookie_id, by, why)
            else:
                await self._lives.move(bookie_id, to, by, why)
        except IllegalMove as error:
            raise await self._refused(bookie_id, str(error)) from error
        except StillNeeded as error:
            raise await self._refused(bookie_id, str(error), error.ledgers) from error
        return {**await self._describe_bookie(bookie_id), **({"todo": todo} if todo else {})}

    async def _refused(self, bookie_id: str, text: str, ledgers: Mapping[int, str] | None = None) -> Refused:
        state = str((await self._states.read(bookie_id)).lifecycle.state)
        if ledgers is None:
            return Refused(409, text, state=state)
        named = ledgers_json(ledgers)
        return Refused(409, text, state=state, ledgers=named, ledgers_total=len(ledgers))
