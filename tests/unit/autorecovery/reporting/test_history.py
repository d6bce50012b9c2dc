"""What was copied in the last hour, and whose entries a ledger has."""

import pytest

from autorecovery.reporting.history import STEP_MS, STEPS_KEPT, CopyHistory, CopyStep, hour_of
from magnetar_core.bookkeeper.metadata.ledgers.owners import owner_of
from tests.support.bookie_world import ledger_metadata

NOW_MS = 1_700_000_010_000
STEP = NOW_MS - NOW_MS % STEP_MS


def test_copies_of_one_step_are_added_up_and_an_idle_step_leaves_nothing() -> None:
    history = CopyHistory()
    history.note(STEP, 10, 1_000)
    history.note(STEP + STEP_MS - 1, 15, 1_500)
    history.note(STEP + STEP_MS, 15, 1_500)
    history.note(STEP + 2 * STEP_MS, 20, 1_501)
    assert history.steps() == [CopyStep(STEP, 15, 1_500), CopyStep(STEP + 2 * STEP_MS, 5, 1)]


def test_what_is_older_than_an_hour_is_forgotten() -> None:
    history = CopyHistory()
    for step in range(STEPS_KEPT + 10):
        history.note(STEP + step * STEP_MS, step + 1, step + 1)
    steps = history.steps()
    assert len(steps) == STEPS_KEPT
    assert steps[0].began_ms == STEP + 10 * STEP_MS
    history.note(STEP + 3 * STEPS_KEPT * STEP_MS, STEPS_KEPT + 10, STEPS_KEPT + 10)
    assert history.steps() == []


def test_a_clock_that_is_set_back_loses_no_copy() -> None:
    history = CopyHistory()
    history.note(STEP, 10, 10)
    history.note(STEP - 5 * STEP_MS, 30, 30)
    assert history.steps() == [CopyStep(STEP, 30, 30)]


def test_the_hour_is_the_sum_of_all_nodes_in_entries_and_bytes_a_second() -> None:
    long_ago = STEP - 2 * 3_600_000
    hour = hour_of([[[STEP, 30, 300]], [[STEP, 60, 30], [STEP - STEP_MS, 90, 3]], [[long_ago, 1, 1]]], NOW_MS)
    assert len(hour) == STEPS_KEPT
    assert hour[-1] == (STEP, 3.0, 11.0)
    assert hour[-2] == (STEP - STEP_MS, 3.0, 0.1)
    assert sum(entries or 0 for _, entries, _ in hour) == 6.0


@pytest.mark.parametrize(
    "told", [None, "x", {"a": 1}, [1], [[1, 2]], [[STEP, "3", 4]], [[STEP, True, 4]], [[STEP, 1.5, 4]]]
)
def test_what_is_no_history_counts_as_none(told: object) -> None:
    assert sum(entries or 0 for _, entries, _ in hour_of([told], NOW_MS)) == 0


def test_before_the_first_node_began_nothing_is_known() -> None:
    hour = hour_of([[[STEP, 30, 300]]], NOW_MS, STEP - STEP_MS - 1)
    assert [entries for _, entries, _ in hour[-4:]] == [None, 0.0, 0.0, 1.0]
    assert {step[1:] for step in hour[:-3]} == {(None, None)}


@pytest.mark.parametrize(
    ("told", "owner"),
    [
        ({"pulsar/managed-ledger": b"public/default/persistent/a%2Fb"}, "persistent://public/default/a/b"),
        (
            {"pulsar/managed-ledger": b"t/n/persistent/x", "pulsar/cursor": b"sub", "component": b"managed-ledger"},
            "subscription sub of persistent://t/n/x",
        ),
        ({"pulsar/cursor": b"sub"}, "subscription sub"),
        ({"pulsar/managed-ledger": b"somebody's own"}, "somebody's own"),
        ({"pulsar/schemaId": b"public/default/x"}, "schema of public/default/x"),
        ({"application": b"pulsar", "component": b"schema"}, "pulsar schema"),
        ({"application": b"magnetar", "magnetar/state-log": b"/dictionary 0123abcd"}, "state log /dictionary"),
        ({"pulsar/managed-ledger": b"\xff"}, "�"),
        ({}, ""),
    ],
)
def test_a_ledger_is_told_by_the_topic_that_its_record_names(told: dict[str, bytes], owner: str) -> None:
    assert owner_of(ledger_metadata(custom_metadata=tuple(told.items()))) == owner
