"""The HTTP calls about auto-recovery, as Apache's bookie answers them, whichever node runs it.

    GET|PUT  autorecovery/status                        on or off, for the whole cluster (?enabled=true|false)
    GET      autorecovery/list_under_replicated_ledger  ?missingreplica= &excludingmissingreplica= &printmissingreplica=
    GET      autorecovery/who_is_auditor
    PUT      autorecovery/trigger_audit
    GET|PUT  autorecovery/lost_bookie_recovery_delay    {"delay_seconds": 17}
    PUT      autorecovery/bookie                        {"bookie_src": ["b1", …], "delete_cookie": false}
    PUT      autorecovery/decommission                  {"bookie_src": "b1", "delete_cookie": false}

All but the last two are reads and writes of the metadata store. Those two begin work that is done in this process
afterwards; what became of it stands in the bookie's log. The bookie itself does not copy ledgers: whoever puts the
process together brings a `RecoveryAccess`.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from aiohttp import web

from bookie.admin.answers import json_answer, text_answer
from bookie.admin.cluster_view import ClusterView
from bookie.admin.questions import Refused, bytes_of, flag, json_body
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import bookie_id_problem
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Corruption, MagnetarError

log = logging.getLogger(__name__)

# Ledgers whose marks are read for one answer; each is one request to the metadata store.
MARKS_READ_MAX: Final = 10_000

# Bookies of one call, and calls whose work is under way: each reads all records and copies with 16 ledgers at a time.
BOOKIES_MAX: Final = 100
RECOVERIES_MAX: Final = 4

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RecoveryAccess(Protocol):
    """Copies ledgers away from bookies."""

    async def recover(self, bookies: Sequence[str], *, delete_cookie: bool) -> str:
        """What was done, as a line for the log. Raises MagnetarError."""
        ...


class AutoRecoveryCalls:
    """The calls. Used on the loop."""

    def __init__(self, store: MetadataStore, root: str, cluster: ClusterView, recovery: RecoveryAccess | None) -> None:
        """*recovery* None: this process cannot copy, and says so."""
        self._marks = MarkBoard(store, root)
        self._cluster = cluster
        self._recovery = recovery
        self._tasks = Tasks("recoveries that operators asked for")

    def table(self) -> dict[str, dict[str, _Handler]]:
        """Path → method → handler."""
        return {
            "autorecovery/status": {"GET": self._status, "PUT": self._switch},
            "autorecovery/list_under_replicated_ledger": {"GET": self._list},
            "autorecovery/who_is_auditor": {"GET": self._who_is_auditor},
            "autorecovery/trigger_audit": {"PUT": self._audit},
            "autorecovery/lost_bookie_recovery_delay": {"GET": self._delay, "PUT": self._set_delay},
            "autorecovery/bookie": {"PUT": self._recover},
            "autorecovery/decommission": {"PUT": self._decommission},
        }

    async def stop(self) -> None:
        """Recoveries that are under way end where they are, which is harmless: nothing half-copied is published."""
        await self._tasks.cancel()

    # -- the switches

    async def _status(self, request: web.Request) -> web.Response:
        return json_answer({"enabled": await self._marks.is_enabled()})

    async def _switch(self, request: web.Request) -> web.Response:
        enabled = request.query.get("enabled", "").lower()
        if enabled not in ("true", "false"):
            raise Refused(400, "the parameter enabled must be true or false")
        await self._marks.set_enabled(enabled == "true")
        return json_answer({"enabled": enabled == "true"})

    async def _who_is_auditor(self, request: web.Request) -> web.Response:
        return text_answer(f"Auditor: {await self._auditor()}")

    async def _audit(self, request: web.Request) -> web.Response:
        await self._auditor()
        # Auditors take the same value once more for a request to audit.
        await self._marks.set_lost_bookie_delay(await self._delay_s())
        return text_answer("Success trigger audit.")

    async def _auditor(self) -> str:
        auditor = await self._cluster.auditor()
        if auditor is None:
            raise Refused(404, "No auditor found: no node of auto-recovery is running")
        return auditor

    async def _delay(self, request: web.Request) -> web.Response:
        return text_answer(f"lostBookieRecoveryDelay value: {await self._delay_s()}")

    async def _delay_s(self) -> int:
        try:
            return await self._marks.lost_bookie_delay_s() or 0
        except Corruption as error:
            raise Refused(500, f"{error}; set it anew") from error

    async def _set_delay(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if "delay_seconds" not in body:
            raise Refused(404, "Request body not contains lostBookieRecoveryDelay.")
        seconds = body["delay_seconds"]
        if not isinstance(seconds, int) or isinstance(seconds, bool) or not 0 <= seconds < 2**31:
            raise Refused(400, f"delay_seconds ({seconds!r}) must be a number of seconds, at least 0")
        await self._marks.set_lost_bookie_delay(seconds)
        return text_answer(f"Success set lostBookieRecoveryDelay to {seconds}")

    # -- marks

    async def _list(self, request: web.Request) -> web.Response:
        missing = request.query.get("missingreplica")
        excluding = request.query.get("excludingmissingreplica")
        shows_replicas = request.query.get("printmissingreplica", "").lower() == "true"
        ids = [ledger_id async for ledger_id in self._marks.marked()]
        if missing is None and excluding is None and not shows_replicas:
            marked: dict[int, tuple[str, ...]] = dict.fromkeys(ids, ())
        elif len(ids) > MARKS_READ_MAX:
            raise Refused(
                400, f"{len(ids)} ledgers are marked; which copies ledgers lack is shown for {MARKS_READ_MAX} at most"
            )
        else:
            marked = {
                ledger_id: replicas for ledger_id in ids if (replicas := await self._replicas(ledger_id)) is not None
            }
            if missing is not None:
                marked = {ledger_id: replicas for ledger_id, replicas in marked.items() if missing in replicas}
            if excluding is not None:
                marked = {ledger_id: replicas for ledger_id, replicas in marked.items() if excluding not in replicas}
        if not marked:
            raise Refused(404, "No under replicated ledgers found")
        if shows_replicas:
            return json_answer({str(ledger_id): list(replicas) for ledger_id, replicas in marked.items()})
        return json_answer(list(marked))

    async def _replicas(self, ledger_id: int) -> tuple[str, ...] | None:
        """None: the mark was taken down meanwhile."""
        try:
            mark = await self._marks.read(ledger_id)
        except Corruption as error:
            log.warning("ledger %d: %s", ledger_id, error)
            return ()
        return None if mark is None else mark.mark.replicas

    # -- copying

    async def _recover(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        bookies = body.get("bookie_src")
        if not isinstance(bookies, list) or not bookies or len(bookies) > BOOKIES_MAX:
            raise Refused(400, f"bookie_src must be a list of 1 to {BOOKIES_MAX} ids of bookies")
        self._begin([_checked(bookie) for bookie in bookies], delete_cookie=flag(body, "delete_cookie", False))
        return text_answer("Success send recovery request command.")

    async def _decommission(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        bookie = _checked(body.get("bookie_src"))
        if bookie in {*await self._cluster.writable(), *await self._cluster.read_only()}:
            raise Refused(400, f"bookie {bookie} is running: stop it before it is decommissioned")
        self._begin([bookie], delete_cookie=flag(body, "delete_cookie", False))
        return text_answer(f"Success send decommission Bookie command {bookie}")

    def _begin(self, bookies: Sequence[str], *, delete_cookie: bool) -> None:
        recovery = self._recovery
        if recovery is None:
            raise Refused(501, "this process cannot copy ledgers; use `magnetar autorecovery recover`")
        if len(self._tasks) >= RECOVERIES_MAX:
            raise Refused(429, f"{RECOVERIES_MAX} recoveries are under way; try again when one of them has ended")
        self._tasks.spawn(self._run(recovery, bookies, delete_cookie=delete_cookie), f"recover {', '.join(bookies)}")

    async def _run(self, recovery: RecoveryAccess, bookies: Sequence[str], *, delete_cookie: bool) -> None:
        names = ", ".join(bookies)
        try:
            log.warning(
                "recovery of %s has ended: %s", names, await recovery.recover(bookies, delete_cookie=delete_cookie)
            )
        except MagnetarError as error:
            log.error("recovery of %s has failed: %s", names, error)

    async def _body(self, request: web.Request) -> dict[str, Any]:
        if not (await bytes_of(request)).strip():
            raise Refused(404, "No request body provide.")
        return await json_body(request)


def _checked(bookie: object) -> str:
    if not isinstance(bookie, str):
        raise Refused(400, f"{bookie!r} is no id of a bookie")
    problem = bookie_id_problem(bookie)
    if problem is not None:
        raise Refused(400, problem)
    return bookie
