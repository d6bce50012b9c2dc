"""Seeded runs of the pure ledger machines: a seed is a whole run. `SEED=8315` repeats one."""

import functools
import os
from collections import Counter

import pytest

from tests.support.simulated_ledger import SimulatedLedger

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(400)


@functools.cache
def counts_of(seed: int) -> Counter[str]:
    """Of a run in which nothing was wrong."""
    world = SimulatedLedger(seed)
    for _ in range(world.rng.randint(50, 500)):
        world.step()
    changes = len(world.metadata.segments) - 1
    world.settle()
    last = world.metadata.last_entry_id
    assert last >= world.acknowledged
    length = 0
    for entry_id in range(last + 1):
        assert world.holders(entry_id) >= world.quorum.ack
        length += len(b"entry %d" % entry_id)
    assert all(
        bytes(entry.payload) == b"entry %d" % entry_id
        for bookie in world.bookies.values()
        for entry_id, entry in bookie.entries.items()
    )
    # Every recovery that succeeded, at whatever moment, saw the same end.
    outcomes = [r.outcome for r in world.recoveries]
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, Exception) and outcome.is_closed:
            assert (outcome.last_entry_id, outcome.length) == (last, world.metadata.length)
    return Counter(
        changes=changes, acknowledged=world.acknowledged + 1, recovered=last > world.acknowledged,
        raced=len(outcomes) > 1, readmitted=world.readmitted, left=world.left, read=world.read,
        disowned=world.disowned, held=world.held,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_no_acknowledged_entry_is_lost_whatever_the_network_does(seed: int) -> None:
    counts_of(seed)


def test_the_runs_reach_what_they_are_for() -> None:
    total = sum((counts_of(seed) for seed in range(250)), Counter[str]())
    assert total["changes"] > 30
    assert total["recovered"] > 10
    assert total["acknowledged"] > 500
    assert total["raced"] > 20
    assert total["readmitted"] > 2
    assert total["left"] > 20
    assert total["held"] > 10
    assert total["read"] > 20
    assert total["disowned"] > 2
