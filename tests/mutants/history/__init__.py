"""Faults that this repository had, and mended: each is put back by a patch as small as it goes, in today's code.

They measure what finds faults: `python -m tests.mutants --history --lives 20` says which of them lives of whole
clusters find by themselves (docs/simulation.md has the figures). Where the catalogue has that patch already it is the
same mutant.

A file for each area; `HISTORY` has all of them. What is written anew since has no place any more and is not here.
"""

from collections.abc import Iterator, Sequence

from tests.mutants.catalogue import Mutant
from tests.mutants.history import (
    auto_recovery,
    bookies,
    delivery,
    ledger_client,
    managed_ledger,
    metadata,
    ownership,
    publishing,
    spark,
    topic_api,
    topics,
)
from tests.mutants.history.mended import Mended

HISTORY: tuple[Mended, ...] = (
    *delivery.MENDED, *publishing.MENDED, *topics.MENDED, *topic_api.MENDED, *ownership.MENDED,
    *managed_ledger.MENDED, *ledger_client.MENDED, *bookies.MENDED, *auto_recovery.MENDED, *metadata.MENDED,
    *spark.MENDED,
)  # fmt: skip


def faults() -> Iterator[Mutant]:
    """All of them, with the mends that hide some."""
    for mended in HISTORY:
        yield mended.fault
        yield from mended.hidden_by


def hidden_by(fault: Mutant) -> Sequence[Mutant]:
    """What has to be taken back with *fault*, so that it shows."""
    return [mutant for mended in HISTORY if mended.fault is fault for mutant in mended.hidden_by]
