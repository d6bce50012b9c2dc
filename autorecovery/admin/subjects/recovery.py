"""Calls about auto-recovery itself: on or off, who audits, what lacks copies, and recoveries that operators begin.

    GET   /auto-recovery                     status, auditor, nodes
    PUT   /auto-recovery                     {"enabled": false}, for the whole cluster
    GET   /auto-recovery/auditor
    POST  /auto-recovery/audit               look for lost bookies now
    GET   /auto-recovery/delay               how long one bookie may be away
    PUT   /auto-recovery/delay               {"seconds": 600}
    GET   /under-replicated-ledgers          with reasons, a page at a time
    POST  /recoveries                        {"bookies": [...]}: copy everything away from them
    GET   /recoveries, /recoveries/{recovery}

A recovery runs in the process that was asked, and is known to that process only. When the process ends, the recovery
ends where it is, which is harmless: nothing half-copied is published, and a new one goes on with what is left.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from autorecovery.admin.calls import Access, Call, CheckedCall, JsonSchema, Refused, checked_bookie
from autorecovery.admin.schema import BOOLEAN, INTEGER, STRING, answer_of, array, closed, one_of, or_null
from autorecovery.admin.shapes import BOOKIES, LEDGER_WHY, LEDGERS_TOLD, MARKED, TIME, ledgers_json
from autorecovery.audit.election import auditor
from autorecovery.manual import ManualRecovery, Recovered, StillNamed
from autorecovery.reporting.overview import MARKS_TOLD, MarkedLedger, read_marked
from autorecovery.reporting.reports import read_nodes
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Corruption, MagnetarError

log = logging.getLogger(__name__)

SUBJECT: Final = "auto-recovery"

# Recoveries under way: each reads all records, and copies 16 ledgers at the same time.
RECOVERIES_MAX: Final = 4

# Recoveries that have ended and can still be asked for.
ENDED_MAX: Final = 100

_DELAY_S_MAX: Final = 2**31 - 1

_STATUS: Final = answer_of(
    {
        "enabled": BOOLEAN,
        "auditor": or_null(STRING),
        "lost_bookie_recovery_delay_s": INTEGER,
        "under_replicated": {"type": "integer", "description": "ledgers that are known to lack copies"},
        "nodes": array(
            answer_of(
                {
                    "name": STRING,
                    "facts": {"type": "object", "description": "what the node tells of itself; grows with versions"},
                },
                title="Node",
            ),
            description="our nodes; those of Apache do not tell of themselves",
        ),
    },
    title="Auto-recovery",
)
_ENABLED: Final = answer_of({"enabled": BOOLEAN})
_SECONDS: Final[JsonSchema] = {"type": "integer", "minimum": 0, "maximum": _DELAY_S_MAX}

RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"

_PROGRESS: Final[Mapping[str, JsonSchema]] = {
    "id": STRING,
    "bookies": array(STRING),
    "state": one_of((RUNNING, DONE, FAILED), description="failed: something is left; the lists say what"),
    "by": STRING,
    "began_ms": INTEGER,
    "ended_ms": TIME,
    "ledgers": {"type": "integer", "description": "those that name one of the bookies"},
    "ledgers_done": INTEGER,
    "repaired": INTEGER,
    "copied_entries": INTEGER,
    "copied_bytes": INTEGER,
    "failures_total": INTEGER,
    "problem": {"type": "string", "description": "why it ended early, or why a cookie stays"},
}
RECOVERY: Final = answer_of({**_PROGRESS, "skipped": array(INTEGER), "failures": array(LEDGER_WHY)}, title="Recovery")


@dataclass(slots=True)
class _Recovery:
    """One recovery, under way or ended."""

    id: str
    bookies: list[str]
    by: str
    began_ms: int
    state: str = RUNNING
    ended_ms: int | None = None
    ledgers: int = 0
    done: int = 0
    recovered: Recovered = field(default_factory=Recovered)
    problem: str = ""

    def facts(self) -> dict[str, Any]:
        return {
            **self.progress(),
            "skipped": self.recovered.skipped[:LEDGERS_TOLD],
            "failures": ledgers_json(self.recovered.failed | self.recovered.unreadable),
        }

    def progress(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "bookies": self.bookies,
            "state": self.state,
            "by": self.by,
            "began_ms": self.began_ms,
            "ended_ms": self.ended_ms,
            "ledgers": self.ledgers,
            "ledgers_done": self.done,
            "repaired": self.recovered.repaired,
            "copied_entries": self.recovered.copied_entries,
            "copied_bytes": self.recovered.copied_bytes,
            "failures_total": len(self.recovered.failed | self.recovered.unreadable),
            "problem": self.problem,
        }


class RecoveryCalls:
    """The calls. Used on the loop."""

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        bookkeeper: BookKeeper,
        clock: Clock,
        *,
        root: str,
        bytes_per_s: float | None,
    ) -> None:
        """*name* stands in the locks of ledgers that a recovery copies. *bookkeeper* is open. *bytes_per_s*: what
        recoveries copy at most; None: no limit."""
        self._store = store
        self._root = root
        self._clock = clock
        self._marks = MarkBoard(store, root)
        self._manual = ManualRecovery(name, store, bookkeeper, clock, root=root, bytes_per_s=bytes_per_s)
        self._tasks = Tasks("recoveries that operators asked for")
        self._recoveries: dict[str, _Recovery] = {}

    async def stop(self) -> None:
        await self._tasks.cancel()

    def calls(self) -> Sequence[Call]:
        return (*self._switch_calls(), *self._copies())

    def _switch_calls(self) -> Sequence[Call]:
        delay = answer_of({"seconds": INTEGER})
        return (
            Call(
                method="GET", path="/auto-recovery", name="getAutoRecovery", subject=SUBJECT, access=Access.READ,
                summary="Whether auto-recovery is on, which node audits, what each node did, and how many ledgers lack "
                "copies.",
                handler=self._status, answer=_STATUS,
            ),
            Call(
                method="PUT", path="/auto-recovery", name="setAutoRecovery", subject=SUBJECT, access=Access.WRITE,
                summary="Switch auto-recovery on or off for every node of the cluster, Apache's too.",
                handler=self._switch, body=closed({"enabled": BOOLEAN}), answer=_ENABLED,
            ),
            Call(
                method="GET", path="/auto-recovery/auditor", name="getAuditor", subject=SUBJECT, access=Access.READ,
                summary="Which node audits; null while none does.",
                handler=self._auditor, answer=answer_of({"auditor": or_null(STRING)}),
            ),
            Call(
                method="POST", path="/auto-recovery/audit", name="triggerAudit", subject=SUBJECT, access=Access.WRITE,
                summary="Ask the auditor to look for lost bookies now.",
                handler=self._audit, status=202, answer=answer_of({"auditor": STRING}),
                refusals={409: "no node audits"},
            ),
            Call(
                method="GET", path="/auto-recovery/delay", name="getLostBookieDelay", subject=SUBJECT,
                access=Access.READ, summary="How many seconds one bookie may be away before its ledgers are copied.",
                handler=self._delay, answer=delay,
            ),
            Call(
                method="PUT", path="/auto-recovery/delay", name="setLostBookieDelay", subject=SUBJECT,
                access=Access.WRITE,
                summary="Set how many seconds one bookie may be away before its ledgers are copied.",
                handler=self._set_delay, body=closed({"seconds": _SECONDS}), answer=delay,
            ),
        )  # fmt: skip

    def _copies(self) -> Sequence[Call]:
        parameters = {"recovery": "the id of a recovery that this process was asked for"}
        return (
            Call(
                method="GET", path="/under-replicated-ledgers", name="listUnderReplicatedLedgers", subject=SUBJECT,
                access=Access.READ,
                summary=f"Ledgers that are known to lack copies, ids ascending, {MARKS_TOLD:,} at a time, with the "
                "reason where one cannot be repaired.",
                handler=self._list_marked,
                answer=answer_of(
                    {
                        "total": INTEGER,
                        "ledgers": array(MARKED),
                        "next": {"type": ["integer", "null"], "description": "`after` of the next page; null: no more"},
                    }
                ),
                query={"after": "only ledgers with greater ids"},
            ),
            Call(
                method="POST", path="/recoveries", name="beginRecovery", subject=SUBJECT, access=Access.WRITE,
                summary="Copy everything away from some bookies, whether they run or not, in this process. Ledgers "
                "that are not closed are closed first, unless they are to be skipped.",
                handler=self._begin, status=202,
                body=closed(
                    {"bookies": BOOKIES, "skip_open": BOOLEAN, "delete_cookies": BOOLEAN},
                    "skip_open", "delete_cookies",
                ),
                answer=RECOVERY, refusals={429: f"{RECOVERIES_MAX} recoveries are under way"},
            ),
            Call(
                method="GET", path="/recoveries", name="listRecoveries", subject=SUBJECT, access=Access.READ,
                summary="The recoveries that this process was asked for, the newest first.",
                handler=self._list,
                answer=answer_of({"recoveries": array(answer_of(_PROGRESS, title="Recovery in short"))}),
            ),
            Call(
                method="GET", path="/recoveries/{recovery}", name="getRecovery", subject=SUBJECT, access=Access.READ,
                summary="How far a recovery is, and which ledgers it could not copy.",
                handler=self._get, answer=RECOVERY, parameters=parameters,
                refusals={404: "this process knows no such recovery"},
            ),
        )  # fmt: skip

    # -- the switches

    async def _status(self, checked: CheckedCall) -> dict[str, Any]:
        return {
            "enabled": await self._marks.is_enabled(),
            "auditor": await auditor(self._store, self._root),
            "lost_bookie_recovery_delay_s": await self._delay_s(),
            "under_replicated": len([ledger_id async for ledger_id in self._marks.marked()]),
            "nodes": [
                {"name": node.name, "facts": dict(node.facts)} for node in await read_nodes(self._store, self._root)
            ],
        }

    async def _switch(self, checked: CheckedCall) -> dict[str, Any]:
        await self._marks.set_enabled(checked.body["enabled"])
        return {"enabled": await self._marks.is_enabled()}

    async def _auditor(self, checked: CheckedCall) -> dict[str, Any]:
        return {"auditor": await auditor(self._store, self._root)}

    async def _audit(self, checked: CheckedCall) -> dict[str, Any]:
        name = await auditor(self._store, self._root)
        if name is None:
            raise Refused(409, "no node of auto-recovery is running, so nobody audits; start `magnetar autorecovery`")
        # Writing the same value again asks the auditor for an audit, also Apache's (class `Auditor`).
        await self._marks.set_lost_bookie_delay(await self._delay_s())
        return {"auditor": name}

    async def _delay(self, checked: CheckedCall) -> dict[str, Any]:
        return {"seconds": await self._delay_s()}

    async def _set_delay(self, checked: CheckedCall) -> dict[str, Any]:
        await self._marks.set_lost_bookie_delay(checked.body["seconds"])
        return {"seconds": checked.body["seconds"]}

    async def _delay_s(self) -> int:
        try:
            return await self._marks.lost_bookie_delay_s() or 0
        except Corruption as error:
            raise Refused(500, f"{error}; set it anew") from error

    async def _list_marked(self, checked: CheckedCall) -> dict[str, Any]:
        text = checked.query.get("after", "-1")
        try:
            after = int(text) if len(text) <= 19 else None
        except ValueError:
            after = None
        if after is None:
            raise Refused(400, f"after {text[:40]!r} must be the id of a ledger")
        total, ledgers, following = await read_marked(self._store, self._root, after=after)
        return {"total": total, "ledgers": [marked_json(ledger) for ledger in ledgers], "next": following}

    # -- copying

    async def _begin(self, checked: CheckedCall) -> dict[str, Any]:
        bookies = [checked_bookie(bookie) for bookie in checked.body["bookies"]]
        if len(self._tasks) >= RECOVERIES_MAX:
            raise Refused(429, f"{RECOVERIES_MAX} recoveries are under way; try again when one of them has ended")
        begun = _Recovery(secrets.token_hex(8), bookies, checked.caller.name, self._clock.wall_ms())
        self._recoveries[begun.id] = begun
        ended = [recovery.id for recovery in self._recoveries.values() if recovery.state != RUNNING]
        for recovery_id in ended[: max(len(ended) - ENDED_MAX, 0)]:
            del self._recoveries[recovery_id]
        skip_open, delete_cookies = checked.body.get("skip_open", False), checked.body.get("delete_cookies", False)
        self._tasks.spawn(self._run(begun, skip_open=skip_open, delete_cookies=delete_cookies), begun.id)
        return begun.facts()

    async def _run(self, recovery: _Recovery, *, skip_open: bool, delete_cookies: bool) -> None:
        def note(done: int, total: int) -> None:
            recovery.done, recovery.ledgers = done, total

        is_done = False
        try:
            recovered = recovery.recovered = await self._manual.recover(
                recovery.bookies, skip_open=skip_open, on_progress=note
            )
            recovery.ledgers = recovered.ledgers
            is_done = not (recovered.failed or recovered.unreadable)
            if delete_cookies and is_done:
                if recovered.skipped:
                    raise StillNamed("ledgers were left to their writers, so the cookies stay")
                for bookie in recovery.bookies:
                    await self._manual.delete_cookie(bookie)
        except MagnetarError as error:
            is_done, recovery.problem = False, str(error)
        except Exception as error:
            is_done, recovery.problem = False, f"a defect ({type(error).__name__}); the log has more"
            raise
        finally:
            recovery.state = DONE if is_done else FAILED
            recovery.ended_ms = self._clock.wall_ms()
            log.warning(
                "recovery %s of %s is %s: %d of %d ledgers are elsewhere now, %d failed%s",
                recovery.id, ", ".join(recovery.bookies), recovery.state, recovery.recovered.repaired,
                recovery.recovered.ledgers, len(recovery.recovered.failed),
                f"; {recovery.problem}" if recovery.problem else "",
            )  # fmt: skip

    async def _list(self, checked: CheckedCall) -> dict[str, Any]:
        return {"recoveries": [recovery.progress() for recovery in reversed(self._recoveries.values())]}

    async def _get(self, checked: CheckedCall) -> dict[str, Any]:
        recovery = self._recoveries.get(checked.path["recovery"])
        if recovery is None:
            raise Refused(404, "this process knows no such recovery; one belongs to the process that was asked for it")
        return recovery.facts()


def marked_json(ledger: MarkedLedger) -> dict[str, Any]:
    """A ledger that lacks copies (`shapes.MARKED`)."""
    problem = None
    if ledger.problem is not None:
        problem = ledger.problem._asdict()
        del problem["ledger_id"]
    return {
        "ledger_id": ledger.ledger_id,
        "owner": ledger.owner,
        "missing_on": list(ledger.replicas),
        "marked_ms": ledger.marked_ms,
        "is_locked": ledger.is_locked,
        "problem": problem,
    }
