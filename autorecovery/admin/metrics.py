"""The metrics of auto-recovery, made of what the dashboard shows.

They are about the whole cluster, so every node gives the same numbers, except for what changed in the seconds between
two readings: take the greatest of them, not their sum. The server adds `magnetar_loop_stalls_total`, which is about its
own process.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from magnetar_core.runtime.observe import Sample

_P: Final = "magnetar_autorecovery_"
_SERVING: Final = ("writable", "read-only", "away")

# What a node reports about itself → name, help.
_OF_NODE: Final = {
    "repaired": ("repaired_ledgers_total", "ledgers that a node gave all of their copies"),
    "copied_entries": ("copied_entries_total", "entries that a node copied"),
    "copied_bytes": ("copied_bytes_total", "bytes that a node copied"),
    "waiting": ("waiting_ledgers", "ledgers that a node cannot repair for now"),
}


def recovery_samples(overview: Mapping[str, Any]) -> Iterator[Sample]:
    """The samples of an overview (`overview_calls.OVERVIEW`)."""
    auditor, marks = overview["auditor"], overview["under_replicated"]
    yield Sample(f"{_P}enabled", bool(overview["is_enabled"]), help="0: switched off, nothing is copied")
    yield Sample(f"{_P}has_auditor", bool(auditor["name"]), help="0: nobody notices lost copies")
    yield Sample(f"{_P}under_replicated_ledgers", marks["total"], help="ledgers with a mark: they lack copies, or move")
    lost = sum(_is_lost(ledger) for ledger in marks["ledgers"])
    yield Sample(f"{_P}lost_ledgers", lost, help="ledgers with entries that no bookie has, of those that are listed")
    tells = auditor["tells"] or {}
    if tells.get("last_audit_ms"):
        text = "when the last audit ended, wall clock"
        yield Sample(f"{_P}last_audit_timestamp_seconds", tells["last_audit_ms"] / 1000, help=text)
    yield from _of_bookies(overview["bookies"])
    for node in overview["nodes"]:
        for member, (name, text) in _OF_NODE.items():
            yield Sample(_P + name, _number(node.get(member)), (("node", node["name"]),), text)


def _of_bookies(bookies: list[dict[str, Any]]) -> Iterator[Sample]:
    serving = Counter(bookie["serving"] for bookie in bookies)
    for kind in _SERVING:
        yield Sample(f"{_P}bookies", serving[kind], (("serving", kind),), "bookies by how they serve")
    states = Counter(str(bookie["state"]) for bookie in bookies if bookie["state"])
    for state in State:
        labels = (("state", str(state)),)
        yield Sample(f"{_P}bookie_states", states[str(state)], labels, "bookies by the state of their life")
    for bookie in bookies:
        named = (("bookie", bookie["id"]),)
        drain = bookie["drain"] or {}
        if bookie["state"] == State.DRAINING and "ledgers_left" in drain:
            left = _number(drain["ledgers_left"])
            yield Sample(f"{_P}drain_ledgers_left", left, named, "ledgers that a drain has still to move")
        failed = bookie["failed_ledgers_total"]
        if failed:
            yield Sample(f"{_P}drain_failed_ledgers", failed, named, "ledgers that a drain could not move")


def _is_lost(marked: Mapping[str, Any]) -> bool:
    problem = marked.get("problem")
    return problem is not None and problem["kind"] == "lost"


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0
