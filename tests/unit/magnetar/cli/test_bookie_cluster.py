"""What `magnetar bookie cluster` says of auto-recovery."""

from typing import Any

from magnetar.cli.bookie.cluster import repair_rows


def bookie(**fields: Any) -> dict[str, Any]:
    return {"id": "b:1", "state": "active", "drain": None, "failed_ledgers_total": 0, **fields}


def overview(*bookies: dict[str, Any], ledgers: list[str | None] | None = None, total: int = 0) -> dict[str, Any]:
    told = [{"problem": None if text is None else {"text": text}} for text in ledgers or []]
    return {
        "nodes": [{"name": "one"}, {"name": "two"}],
        "bookies": list(bookies),
        "under_replicated": {"total": total or len(told), "ledgers": told},
    }


def test_nothing_is_said_while_all_is_well() -> None:
    assert repair_rows(overview(bookie())) == []


def test_ledgers_that_lack_copies_are_counted_and_the_reasons_summed_up() -> None:
    texts = [None, "no bookie is free", "no bookie is free", *(f"reason {number}" for number in range(6))]
    rows = repair_rows(overview(ledgers=texts, total=2_000))
    assert rows[0] == ("to repair", "2000 ledgers lack copies; repaired by one, two")
    assert rows[1] == ("", "2 wait: no bookie is free")
    assert rows[-1] == ("", "2 other reasons: magnetar autorecovery list")
    assert len(rows) == 7


def test_without_a_node_of_ours_it_says_so() -> None:
    found = overview(ledgers=[None])
    found["nodes"] = []
    assert repair_rows(found) == [("to repair", "1 ledgers lack copies; no node of ours repairs them")]


def test_drains_are_told_with_what_is_left_or_what_hinders_them() -> None:
    drain = {"problem": "", "ledgers": 40, "ledgers_left": 12, "eta_s": 75}
    assert repair_rows(
        overview(
            bookie(state="draining", drain=drain),
            bookie(state="draining", drain={**drain, "eta_s": None}),
            bookie(state="draining", drain={**drain, "problem": "it takes entries still"}),
            bookie(state="draining"),
            bookie(state="draining-failed", failed_ledgers_total=3),
            bookie(state="drained"),
            bookie(state=None),
        )
    ) == [
        ("bookie", "b:1 is draining: 12 of 40 ledgers are left, about 75 s"),
        ("bookie", "b:1 is draining: 12 of 40 ledgers are left"),
        ("bookie", "b:1 is draining: it takes entries still"),
        ("bookie", "b:1 is draining"),
        ("bookie", "b:1 is draining-failed: 3 ledgers cannot be copied (magnetar bookies status b:1)"),
        ("bookie", "b:1 is drained"),
        ("bookie", "b:1 is in a state that cannot be read"),
    ]
