"""The states of a cluster that an operator meets, as the dashboard gets them."""

import time
from typing import Any

GIB = 1024**3


def bookie(number: int, **told: Any) -> dict[str, Any]:
    """A bookie that is well, but for what is *told*."""
    return {
        "id": f"10.0.0.{number}:3181",
        "serving": "writable",
        "read_only_reason": "",
        "state": "active",
        "state_problem": "",
        "by": "",
        "why": "",
        "since_ms": None,
        "began_ms": None,
        "failed_ledgers": [],
        "failed_ledgers_total": 0,
        "rack": f"/rack-{number % 2}",
        "disk": {"total_bytes": 500 * GIB, "free_bytes": (400 - 40 * number) * GIB},
        "drain": None,
        **told,
    }


def ledger(ledger_id: int, **told: Any) -> dict[str, Any]:
    """A ledger that lacks a copy."""
    return {
        "ledger_id": ledger_id,
        "owner": f"persistent://shop/orders/paid-partition-{ledger_id % 4}",
        "missing_on": ["10.0.0.3:3181"],
        "marked_ms": now_ms() - 12_000,
        "is_locked": False,
        "problem": None,
        **told,
    }


def now_ms() -> int:
    return int(time.time() * 1000)


def healthy() -> dict[str, Any]:
    """Five bookies, one node that has repaired something before."""
    now = now_ms()
    step = 30_000
    first = now - now % step - 119 * step
    return {
        "now_ms": now,
        "is_enabled": True,
        "lost_bookie_delay_s": 10,
        "auditor": {
            "name": "10.0.0.1:3181",
            "tells": {"audits": 4, "marked": 12, "last_audit_ms": now - 40_000, "last_audit_s": 0.2, "ledgers": 1234},
        },
        "nodes": [
            {
                "name": "10.0.0.1:3181", "is_auditor": True, "repaired": 12, "copied_entries": 48_000,
                "copied_bytes": 96 * 1024**2, "last_repaired_ms": now - 600_000, "under_way": [], "waiting": 0,
            },
        ],
        "bookies": [bookie(number) for number in range(1, 6)],
        "under_replicated": {"total": 0, "ledgers": []},
        "history": [
            [first + at * step, 800.0 if 90 <= at < 100 else 0.0, 1_600_000.0 if 90 <= at < 100 else 0.0]
            for at in range(120)
        ],
    }  # fmt: skip


def bookie_gone() -> dict[str, Any]:
    """One bookie is away; its ledgers are being copied, and of one nobody has all entries."""
    told = healthy()
    told["bookies"][2] = bookie(3, serving="away", disk=None)
    lost = {
        "kind": "lost", "text": "entries 0 to 3 are on no bookie that is there", "since_ms": now_ms() - 9_000,
        "attempts": 3, "lost": [[0, 3]],
    }  # fmt: skip
    told["under_replicated"] = {
        "total": 260,
        "ledgers": [ledger(7, problem=lost), ledger(8, is_locked=True), *(ledger(number) for number in range(9, 30))],
    }
    return told


def drain_under_way() -> dict[str, Any]:
    """One bookie leaves."""
    told = healthy()
    drain = {
        "phase": "copying", "problem": "", "ledgers": 400, "ledgers_left": 100, "bytes": 40 * GIB,
        "bytes_left": 10 * GIB, "ledgers_per_minute": 60.0, "eta_s": 100, "waiting": 1,
        "waiting_ledgers": {"31": "its writer has it open"}, "hopeless": 0, "hopeless_ledgers": {},
    }  # fmt: skip
    told["bookies"][4] = bookie(
        5, serving="read-only", read_only_reason="draining", state="draining", by="anna@ops", why="its disk is old",
        since_ms=now_ms() - 300_000, began_ms=now_ms() - 300_000, drain=drain,
    )  # fmt: skip
    return told


def drain_failed() -> dict[str, Any]:
    """A drain that could not be ended."""
    told = healthy()
    told["bookies"][4] = bookie(
        5, serving="read-only", read_only_reason="draining", state="draining-failed", by="10.0.0.1:3181",
        why="2 ledgers could not be moved", since_ms=now_ms() - 60_000, began_ms=now_ms() - 300_000,
        failed_ledgers=[
            {"ledger_id": 31, "why": "each bookie that may take entries has copies of it already; add a bookie"},
            {"ledger_id": 32, "why": "entries 5 to 9 are on no bookie that is there"},
        ],
        failed_ledgers_total=2,
    )  # fmt: skip
    return told
