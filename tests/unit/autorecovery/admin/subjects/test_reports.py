"""Reports of damage over the management interface; the handlers are asked as its server asks them."""

from typing import Any

import pytest

from autorecovery.admin.calls import Call, Caller, CheckedCall, Refused
from autorecovery.admin.subjects.reports import ReportCalls
from magnetar_core.bookkeeper.metadata.damage import rules
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock


class Asking:
    """Makes calls by their names."""

    def __init__(self) -> None:
        clock = LoopClock()
        self.store = MemoryStore(clock)
        self.calls: dict[str, Call] = {
            call.name: call for call in ReportCalls(DamageReports(self.store), clock).calls()
        }

    async def ask(self, name: str, report: str = "", query: dict[str, str] | None = None, **body: Any) -> Any:
        call = self.calls[name]
        path = {"report": report} if "{report}" in call.path else {}
        found = await call.handler(CheckedCall(Caller("ann", True), path, query or {}, body))
        if call.answer["type"] == "object":
            assert set(found) == set(call.answer["properties"])
        return found

    async def posted(self, ledger_id: int, kind: str = "data-loss", **more: Any) -> Any:
        return await self.ask("postReport", ledger_id=ledger_id, kind=kind, text="gone", **more)

    async def refused(self, name: str, report: str = "", query: dict[str, str] | None = None, **body: Any) -> int:
        with pytest.raises(Refused) as refused:
            await self.ask(name, report, query, **body)
        assert refused.value.status == 400 or refused.value.status in self.calls[name].refusals
        return refused.value.status


@pytest.fixture
def asking() -> Asking:
    return Asking()


async def test_a_report_is_posted_listed_acknowledged_and_mended(asking: Asking) -> None:
    one = await asking.posted(7, ranges=[[4, 5], [0, 3]])
    assert (one["source"], one["name"], one["ranges"], one["state"]) == ("client", "ann", [[0, 5]], "open")
    two = await asking.posted(8, "bad-ledger")
    assert await asking.ask("listReports") == {"reports": [one, two]}
    seen = await asking.ask("moveReport", one["id"], state="acknowledged", note="I look at it")
    assert (seen["state"], seen["by"], seen["note"]) == ("acknowledged", "ann", "I look at it")
    assert await asking.ask("getReport", one["id"]) == seen
    assert await asking.ask("listReports", query={"state": "open"}) == {"reports": [two]}
    assert await asking.ask("listReports", query={"ledger": "7"}) == {"reports": [seen]}
    assert await asking.ask("listReports", query={"ledger": "7", "state": "open"}) == {"reports": []}
    mended = await asking.ask("moveReport", one["id"], state="mended")
    assert mended["state"] == "mended"
    assert await asking.refused("moveReport", one["id"], state="mended") == 409
    assert (await asking.posted(7))["state"] == "open"


async def test_what_makes_no_sense_is_refused(asking: Asking) -> None:
    assert await asking.refused("postReport", ledger_id=2**63, kind="data-loss", text="") == 400
    assert await asking.refused("postReport", ledger_id=1, kind="data-loss", text="", ranges=[[3, 2]]) == 400
    assert await asking.refused("postReport", ledger_id=1, kind="gone", text="") == 400
    assert await asking.refused("postReport", ledger_id=1, kind="data-loss", text="", ranges=[[3]]) == 400
    assert await asking.refused("postReport", ledger_id=1, kind="data-loss", text="", ranges=[["a", "b"]]) == 400
    assert await asking.refused("moveReport", "x", state="gone") == 400
    assert await asking.refused("moveReport", "x", state="open") == 404
    assert await asking.refused("listReports", query={"state": "gone"}) == 400
    assert await asking.refused("listReports", query={"ledger": "-1"}) == 400
    for name in ("getReport", "moveReport"):
        assert await asking.refused(name, "../x", state="mended") == 404


async def test_so_many_reports_are_taken_over_http(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "REPORTS_MAX", 2)
    for ledger_id in range(2):
        await asking.posted(ledger_id)
    assert await asking.refused("postReport", ledger_id=2, kind="data-loss", text="") == 409


async def test_a_report_that_cannot_be_read_says_so(asking: Asking) -> None:
    """I60"""
    one = await asking.posted(7)
    await asking.store.put(f"/ledgers/underreplication/magnetar/reports/{one['id']}", b"{}")
    assert await asking.refused("getReport", one["id"]) == 409
    assert await asking.refused("moveReport", one["id"], state="mended") == 409
    assert await asking.ask("listReports") == {"reports": []}
