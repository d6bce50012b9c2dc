"""Every call of the management interface over real HTTP; each answer has the form that the OpenAPI document tells."""

import json
from typing import Any

import pytest

from autorecovery.admin import shapes
from autorecovery.admin.shapes import BOOKIES_MAX
from autorecovery.admin.subjects import recovery as recovery_calls
from autorecovery.admin.subjects.cookies import COOKIE_CHARS_MAX
from autorecovery.admin.subjects.recovery import RECOVERIES_MAX
from autorecovery.lifecycle.removal import RISKS_TOLD, Answer, Kind, Risk, risk_of
from autorecovery.lifecycle.turning import TurnedBookies
from autorecovery.reporting.overview import read_marked
from autorecovery.reporting.reports import Problem, _encode, _path_of
from bookie.disks.cookie import Cookie
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import cookie_path, state_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerState, Segment, ledger_path
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import instance_id
from magnetar_core.bookkeeper.metadata.marks import underreplication as board
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import OutcomeUnknown
from tests.support.bookie_world import ledger_metadata
from tests.support.waiting import eventually
from tests.unit.autorecovery.admin.management_world import ROOT, World, managed

STATE = "/bookies/bookie-0/state"
COOKIE = "/bookies/bookie-0/cookie"
SERVING = "/bookies/bookie-0/serving"


async def set_state(world: World, state: State, why: str = "") -> Any:
    found = await world.call("PUT", STATE, {"state": state, "why": why})
    assert found.status == 200, found
    return found.json


# ------------------------------------------------------------------------------------------ states


async def test_an_operator_begins_a_drain_follows_it_and_calls_it_off() -> None:
    async with managed() as world:
        begun = await set_state(world, State.DRAINING, "old disks")
        assert (begun["state"], begun["by"], begun["why"]) == ("draining", "127.0.0.1", "old disks")
        assert begun["since_ms"] == begun["began_ms"] > 0
        facts = {"is_auditor": True, "drains": {"bookie-0": {"phase": "copying", "ledgers": 8, "ledgers_left": 6}}}
        await world.store.put(f"{board.nodes_path(ROOT)}/one", json.dumps(facts).encode())
        assert (await world.get(STATE))["progress"] == {"phase": "copying", "ledgers": 8, "ledgers_left": 6}
        listed = (await world.get("/bookies"))["bookies"]
        assert [(one["bookie"], one["state"], one["mode"]) for one in listed] == [
            ("bookie-0", "draining", "writable"),
            ("bookie-1", "active", "writable"),
            ("bookie-2", "active", "writable"),
        ]
        assert [one["bookie"] for one in (await world.get("/bookies?state=draining"))["bookies"]] == ["bookie-0"]
        assert (await set_state(world, State.ACTIVE))["state"] == "active"


async def test_a_bookie_of_apaches_that_the_drain_turned_is_turned_back_or_the_answer_says_what_is_left_to_do() -> None:
    async with managed() as world:
        turned = TurnedBookies(world.store, ROOT)
        for refuses in ("", "no"):
            async with world.http_of("bookie-0", is_ours=False, refuses=refuses) as bodies:
                await set_state(world, State.DRAINING)
                await turned.note("bookie-0")
                await world.cluster.set_read_only("bookie-0", True)
                found = await set_state(world, State.ACTIVE)
                assert bodies == [{"readOnly": False}]
                assert found["mode"] == ("read-only" if refuses else "writable")
                assert ("answered 500: no" in found.get("todo", "")) is bool(refuses)


async def test_a_move_that_is_not_legal_is_refused_with_the_reason_and_the_present_state() -> None:
    async with managed() as world:
        refused = await world.call("PUT", STATE, {"state": "active"})
        assert (refused.status, refused.reason, refused.json["state"]) == (409, "it is active already", "active")
        refused = await world.call("PUT", STATE, {"state": "drained"})
        assert (refused.status, "only a failed drain is finished by hand" in refused.reason) == (409, True)
        await set_state(world, State.DRAINING)
        refused = await world.call("PUT", STATE, {"state": "draining-failed"})
        assert (refused.status, "only the auditor" in refused.reason) == (409, True)


async def test_a_failed_drain_is_called_drained_only_when_no_record_names_the_bookie() -> None:
    async with managed() as world:
        for ledger_id in (1, 2):
            await world.record(ledger_id, "bookie-0", "bookie-1")
        await set_state(world, State.DRAINING)
        await world.audit("bookie-0", State.DRAINING_FAILED, (1, "no copy of entries 0 to 3"))
        told = await world.get(STATE)
        assert told["reasons"] == [{"ledger_id": 1, "why": "no copy of entries 0 to 3"}]
        refused = await world.call("PUT", STATE, {"state": "drained"})
        assert (refused.status, "is registered as writable" in refused.reason) == (409, True)
        await world.cluster.set_read_only("bookie-0", True)
        refused = await world.call("PUT", STATE, {"state": "drained"})
        assert refused.status == 409
        assert refused.json["ledgers"] == [{"ledger_id": 1, "why": "names it"}, {"ledger_id": 2, "why": "names it"}]
        assert refused.json["ledgers_total"] == 2
        for ledger_id in (1, 2):
            await world.store.delete(ledger_path(ROOT, ledger_id))
        assert (await set_state(world, State.DRAINED, "mended"))["why"] == "mended"


async def test_a_bookie_that_nobody_knows_has_no_state() -> None:
    async with managed() as world:
        for method, body in (("GET", None), ("PUT", {"state": "draining"})):
            refused = await world.call(method, "/bookies/bookie-9/state", body)
            assert (refused.status, "known are: bookie-0, bookie-1, bookie-2" in refused.reason) == (404, True)
        assert (await world.call("GET", "/bookies/a%20b/state")).status == 400


async def test_a_state_that_cannot_be_read_is_told_as_such() -> None:
    """I60"""
    async with managed() as world:
        await world.store.put(state_path(ROOT, "bookie-1"), b"?")
        (found,) = (await world.get("/bookies?state=unreadable"))["bookies"]
        assert (found["bookie"], "/ledgers/cookies/bookie-1/state" in found["why"]) == ("bookie-1", True)
        assert (await world.call("GET", "/bookies?state=odd")).status == 400


# ------------------------------------------------------------------------------------------ serving


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_bookie_is_turned_through_its_own_http(is_ours: bool) -> None:
    async with managed() as world, world.http_of("bookie-0", is_ours=is_ours) as bodies:
        before = await world.get(SERVING)
        assert (before["mode"], before["reasons"]) == ("writable", [])
        assert before["http"].startswith("http://127.0.0.1:")
        turned = await world.call("PUT", SERVING, {"mode": "read-only", "why": "disk check"})
        assert (turned.status, turned.json["mode"]) == (200, "read-only")
        sent = {"readOnly": True, "reason": "operator", "detail": "disk check (127.0.0.1)"}
        assert bodies == [sent if is_ours else {"readOnly": True}]
        if is_ours:
            assert (await world.get(SERVING))["reasons"] == ["operator: disk check (127.0.0.1)"]
        assert (await world.call("PUT", SERVING, {"mode": "writable"})).json["mode"] == "writable"


async def test_a_bookie_without_http_is_refused_with_the_way_out() -> None:
    async with managed() as world:
        refused = await world.call("PUT", SERVING, {"mode": "read-only"})
        assert refused.status == 409
        assert "names no HTTP; start it with httpServerEnabled=true" in refused.reason
        async with world.http_of("bookie-0", is_ours=False, refuses="no disk"):
            refused = await world.call("PUT", SERVING, {"mode": "read-only"})
            assert (refused.status, "answered 500: no disk" in refused.reason) == (409, True)
        refused = await world.call("PUT", SERVING, {"mode": "read-only"})
        assert (refused.status, "does not answer" in refused.reason) == (409, True)


async def test_a_bookie_that_leaves_is_not_made_writable_and_one_that_is_away_is_not_turned() -> None:
    """I74"""
    async with managed() as world:
        await set_state(world, State.DRAINING)
        refused = await world.call("PUT", SERVING, {"mode": "writable"})
        assert (refused.status, refused.json["state"]) == (409, "draining")
        await world.cluster.set_read_only("bookie-0", True)
        assert (await world.get(SERVING))["reasons"] == ["its state is draining"]
        await world.cluster.kill("bookie-0")
        assert await world.get(SERVING) == {
            "bookie": "bookie-0", "mode": "away", "reasons": ["it is not registered"], "http": None,
        }  # fmt: skip
        refused = await world.call("PUT", SERVING, {"mode": "read-only"})
        assert (refused.status, "is not registered" in refused.reason) == (409, True)
        for method, body in (("GET", None), ("PUT", {"mode": "read-only"})):
            assert (await world.call(method, "/bookies/bookie-9/serving", body)).status == 404


# ------------------------------------------------------------------------------------------ cookies


async def test_a_cookie_is_stored_only_where_there_is_none_and_only_if_the_bookie_would_accept_it() -> None:
    async with managed() as world:
        text = (await world.get(COOKIE))["cookie"]
        assert text.startswith("5\nbookieHost:")
        refused = await world.call("PUT", COOKIE, {"cookie": text})
        assert (refused.status, "never replaced" in refused.reason) == (409, True)
        await world.store.delete(cookie_path(ROOT, "bookie-0"))
        assert (await world.call("GET", COOKIE)).status == 404
        cluster = await instance_id(world.store, ROOT)
        for wrong, reason in (
            ("7 cookies", "the text is no cookie"),
            (Cookie("bookie-1", ("/j",), ("/l",), cluster).encode().decode(), "that of bookie bookie-1"),
            (Cookie("bookie-0", ("/j",), ("/l",), "other").encode().decode(), "of the cluster other"),
        ):
            refused = await world.call("PUT", COOKIE, {"cookie": wrong})
            assert (refused.status, reason in refused.reason) == (400, True), refused
        assert (await world.call("PUT", COOKIE, {"cookie": text})).status == 201
        assert (await world.get(COOKIE))["cookie"] == text


async def test_a_cookie_is_deleted_only_from_a_drained_bookie_that_no_record_names() -> None:
    async with managed() as world:
        await world.record(1, "bookie-0", "bookie-1")
        refused = await world.call("DELETE", COOKIE)
        assert refused.status == 409
        assert "only a drained one can be removed" in refused.reason
        assert (refused.json["state"], refused.json["ledgers_total"]) == ("active", 1)
        await set_state(world, State.DRAINING)
        await world.audit("bookie-0", State.DRAINED)
        for is_read_only, mode in ((False, "writable"), (True, "read-only")):
            await world.cluster.set_read_only("bookie-0", is_read_only)
            refused = await world.call("DELETE", COOKIE)
            assert refused.status == 409
            assert f"bookie bookie-0 is registered as {mode}: it runs still, so stop it first" in refused.reason
            assert refused.json["state"] == "drained"
        await world.cluster.kill("bookie-0")
        refused = await world.call("DELETE", COOKIE)
        assert refused.json["ledgers"] == [{"ledger_id": 1, "why": "names it"}]
        await world.store.delete(ledger_path(ROOT, 1))
        assert (await world.call("DELETE", COOKIE)).json == {"bookie": "bookie-0", "removed": True}
        assert (await world.call("DELETE", COOKIE)).status == 404
        assert (await world.call("GET", STATE)).status == 404


async def test_a_cookie_whose_answer_was_lost_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed(cookies=False) as world:
        put = world.store.put

        async def lost(path: str, *rest: Any, **more: Any) -> int:
            await put(path, *rest, **more)
            raise OutcomeUnknown("the connection broke")

        monkeypatch.setattr(world.store, "put", lost)
        text = Cookie("bookie-0", ("/j",), ("/l",), "").encode().decode()
        assert (await world.call("PUT", COOKIE, {"cookie": text})).status == 201


# ------------------------------------------------------------------------------------------ safe to remove


async def ask(world: World, *bookies: str) -> Any:
    found = await world.call("POST", "/safe-to-remove", {"bookies": list(bookies)})
    assert found.status == 200, found
    return found.json


async def test_bookies_are_judged_together() -> None:
    async with managed() as world:
        closed = {"state": LedgerState.CLOSED, "last_entry_id": 9, "length": 90}
        await world.record(1, "bookie-0", "bookie-1", **closed)
        assert (await ask(world, "bookie-2"))["ledgers"] == 0
        assert (await ask(world, "bookie-0"))["safe"] is True
        both = await ask(world, "bookie-0", "bookie-1")
        assert (both["safe"], both["totals"]) == (False, {"lost": 1, "unreadable": 0, "few-copies": 0, "open": 0})
        assert both["risks"] == [
            {"ledger_id": 1, "kind": "lost", "copies_left": 0,
             "why": "no copy of some entries between 0 and 9 would be left"}
        ]  # fmt: skip


async def test_marks_dead_bookies_open_ledgers_and_records_that_cannot_be_read_count() -> None:
    async with managed(4) as world:
        closed = {"state": LedgerState.CLOSED, "last_entry_id": 9, "length": 90}
        await world.record(1, "bookie-0", "bookie-1", **closed)
        await world.marks.mark(1, "bookie-1", 1)
        await world.record(2, "bookie-0", "bookie-1", "bookie-3", ack_quorum=2, **closed)
        await world.record(3, "bookie-0", "bookie-1")
        await world.record(5, "bookie-2", "bookie-3", **closed)
        await world.store.put(ledger_path(ROOT, 4), b"?")
        await world.cluster.kill("bookie-3")
        found = await ask(world, "bookie-0")
        assert [(one["ledger_id"], one["kind"]) for one in found["risks"]] == [
            (1, "lost"), (4, "unreadable"), (2, "few-copies"), (3, "open"),
        ]  # fmt: skip
        assert found["ledgers"] == 4
        assert (await world.call("POST", "/safe-to-remove", {"bookies": ["bookie-9"]})).status == 404
        assert (await world.call("POST", "/safe-to-remove", {"bookies": ["a b"]})).status == 400
        await world.record(6, "bookie-8", "bookie-2", **closed)
        assert (await ask(world, "bookie-8"))["ledgers"] == 2, "it has no cookie any more, and a record names it"


# ------------------------------------------------------------------------------------------ auto-recovery


async def test_auto_recovery_is_switched_asked_and_told_of() -> None:
    async with managed() as world:
        assert await world.get("/auto-recovery/auditor") == {"auditor": None}
        refused = await world.call("POST", "/auto-recovery/audit")
        assert (refused.status, "nobody audits" in refused.reason) == (409, True)
        node = await world.nodes.start("one")
        await eventually(lambda: node.election.is_elected)
        audited = await world.call("POST", "/auto-recovery/audit")
        assert (audited.status, audited.json) == (202, {"auditor": "one"})
        assert (await world.call("PUT", "/auto-recovery/delay", {"seconds": 600})).json == {"seconds": 600}
        assert await world.get("/auto-recovery/delay") == {"seconds": 600}
        assert (await world.call("PUT", "/auto-recovery/delay", {"seconds": -1})).status == 400
        assert (await world.call("PUT", "/auto-recovery", {"enabled": False})).json == {"enabled": False}

        async def is_told() -> bool:
            return bool((await world.get("/auto-recovery"))["nodes"])

        await eventually(is_told)
        status = await world.get("/auto-recovery")
        assert (status["enabled"], status["auditor"], status["lost_bookie_recovery_delay_s"]) == (False, "one", 600)
        assert [one["name"] for one in status["nodes"]] == ["one"]
        await world.store.put(board.delay_path(ROOT), b"soon")
        assert (await world.call("PUT", "/auto-recovery", {"enabled": True})).json == {"enabled": True}


async def test_ledgers_that_lack_copies_are_listed_a_page_at_a_time_with_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def in_twos(*where: Any, after: int) -> Any:
        return await read_marked(*where, after=after, most=2)

    monkeypatch.setattr(recovery_calls, "read_marked", in_twos)
    async with managed() as world:
        for ledger_id in (1, 2, 3):
            await world.marks.mark(ledger_id, "bookie-0", 5)
        problem = Problem(2, "lost", "entries are gone", 6, 1, "one", ((0, 3),))
        await world.store.put(_path_of(ROOT, 2), _encode(problem))
        first = await world.get("/under-replicated-ledgers")
        assert (first["total"], first["next"], [one["ledger_id"] for one in first["ledgers"]]) == (3, 2, [1, 2])
        assert first["ledgers"][1]["problem"]["lost"] == [[0, 3]]
        second = await world.get("/under-replicated-ledgers?after=2")
        assert (second["next"], [one["ledger_id"] for one in second["ledgers"]]) == (None, [3])
        assert (await world.call("GET", "/under-replicated-ledgers?after=x")).status == 400


async def ended(world: World, recovery: str) -> Any:
    async def is_over() -> bool:
        return bool((await world.get(f"/recoveries/{recovery}"))["state"] != "running")

    await eventually(is_over)
    return await world.get(f"/recoveries/{recovery}")


async def test_everything_is_copied_away_from_a_bookie_in_the_background() -> None:
    async with managed(4) as world:
        ledgers = [await world.nodes.written(5) for _ in range(6)]
        await world.cluster.kill("bookie-0")
        begun = await world.call("POST", "/recoveries", {"bookies": ["bookie-0"], "delete_cookies": True})
        assert (begun.status, begun.json["state"], begun.json["by"]) == (202, "running", "127.0.0.1")
        told = await ended(world, begun.json["id"])
        assert (told["state"], told["problem"], told["failures"]) == ("done", "", [])
        assert told["ledgers"] == told["ledgers_done"] == told["repaired"] > 0
        for ledger_id in ledgers:
            assert await world.nodes.is_whole(ledger_id)
        assert (await world.call("GET", COOKIE)).status == 404
        assert [one["id"] for one in (await world.get("/recoveries"))["recoveries"]] == [begun.json["id"]]


async def test_what_a_recovery_could_not_do_is_told_by_ledger() -> None:
    async with managed(3) as world:
        lonely = await world.nodes.written(2, ensemble=1, write=1, ack=1)
        (holder,) = (await world.nodes.writer.read_metadata(lonely)).bookies()
        await world.cluster.kill(holder)
        begun = await world.call("POST", "/recoveries", {"bookies": [holder], "delete_cookies": True})
        told = await ended(world, begun.json["id"])
        assert (told["state"], told["failures_total"]) == ("failed", 1)
        assert told["failures"][0]["ledger_id"] == lonely
        assert (await world.call("GET", f"/bookies/{holder}/cookie")).status == 200
        assert (await world.call("GET", "/recoveries/0")).status == 404


async def test_open_ledgers_may_be_left_and_then_cookies_stay() -> None:
    async with managed(4) as world:
        handle = await world.nodes.writer.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await handle.add(b"entry 0")
        bookie = handle.metadata.last_segment.ensemble[0]
        body = {"bookies": [bookie], "skip_open": True, "delete_cookies": True}
        told = await ended(world, (await world.call("POST", "/recoveries", body)).json["id"])
        assert (told["state"], told["skipped"]) == ("failed", [handle.ledger_id])
        assert "the cookies stay" in told["problem"]
        await handle.add(b"entry 1")


async def test_recoveries_under_way_are_limited() -> None:
    async with managed(4) as world:
        ledger_id = await world.nodes.written(5)
        bookie = (await world.nodes.writer.read_metadata(ledger_id)).last_segment.ensemble[0]
        assert await MarkBoard(world.cluster._session(), ROOT).lock(ledger_id, "somebody")
        for _ in range(RECOVERIES_MAX):
            assert (await world.call("POST", "/recoveries", {"bookies": [bookie]})).status == 202
        refused = await world.call("POST", "/recoveries", {"bookies": [bookie]})
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")


# ------------------------------------------------------------------------------------------ limits


async def test_so_many_ledgers_are_named_in_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "LEDGERS_TOLD", 1)
    async with managed() as world:
        for ledger_id in (1, 2):
            await world.record(ledger_id, "bookie-0")
        refused = await world.call("DELETE", COOKIE)
        assert (len(refused.json["ledgers"]), refused.json["ledgers_total"]) == (1, 2)


async def test_so_many_recoveries_that_have_ended_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_calls, "ENDED_MAX", 1)
    async with managed() as world:
        ids = []
        for _ in range(4):
            ids.append((await world.call("POST", "/recoveries", {"bookies": ["bookie-0"]})).json["id"])
            await ended(world, ids[-1])
        assert [one["id"] for one in (await world.get("/recoveries"))["recoveries"]] == [ids[3], ids[2]]


async def test_a_cookie_and_a_list_of_bookies_have_a_limit() -> None:
    async with managed() as world:
        assert (await world.call("PUT", COOKIE, {"cookie": "c" * (COOKIE_CHARS_MAX + 1)})).status == 400
        many = [f"bookie-{at}" for at in range(BOOKIES_MAX + 1)]
        for path in ("/safe-to-remove", "/recoveries"):
            refused = await world.call("POST", path, {"bookies": many})
            assert (refused.status, "(maxItems: 100)" in refused.reason) == (400, True)


def test_an_answer_names_so_many_ledgers_at_risk_the_worst_first() -> None:
    answer = Answer()
    for at in range(RISKS_TOLD + 1):
        answer.add(Risk(at, Kind.OPEN, 1, ""))
    answer.add(Risk(7, Kind.LOST, 0, ""))
    assert (len(answer.risks), answer.risks[0].kind, answer.totals[Kind.OPEN]) == (
        RISKS_TOLD,
        Kind.LOST,
        RISKS_TOLD + 1,
    )


def test_a_ledger_with_segments_is_judged_by_each_of_them() -> None:
    metadata = ledger_metadata(
        ensemble_size=3, write_quorum=2, ack_quorum=2, state=LedgerState.CLOSED, last_entry_id=19, length=20,
        segments=(Segment(0, ("a", "b", "c")), Segment(10, ("d", "e", "f"))),
    )  # fmt: skip
    everybody = set("abcdef")
    found = risk_of(7, metadata, {"d"}, everybody, ())
    assert found is not None
    assert (found.kind, found.copies_left) == ("few-copies", 1)
    assert "between 10 and 19" in found.text
    found = risk_of(7, metadata, {"a", "b"}, everybody, ())
    assert found is not None
    assert (found.kind, "between 0 and 9" in found.text) == ("lost", True)
    assert risk_of(7, metadata, {"g"}, everybody, ()) is None
