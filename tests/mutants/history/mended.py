"""A fault of the history, with the commit that mended it."""

from typing import Final, NamedTuple

from tests.mutants import auto_recovery, broker, ledger_client, managed_ledger, older_metadata, shares
from tests.mutants.catalogue import MUTANTS, Mutant

_CATALOGUES: Final = (
    *MUTANTS, *auto_recovery.MUTANTS, *broker.MUTANTS, *ledger_client.MUTANTS, *managed_ledger.MUTANTS,
    *older_metadata.MUTANTS, *shares.MUTANTS,
)  # fmt: skip


class Mended(NamedTuple):
    commit: str
    """The short hash of the mend."""
    seen: str
    """What users saw, or would have seen, in one sentence."""
    fault: Mutant
    hidden_by: tuple[Mutant, ...] = ()
    """Other mends that keep users from seeing it, which are taken back as well."""


def catalogued(name: str) -> Mutant:
    """The mutant of that name, where a catalogue has the patch already."""
    (mutant,) = (mutant for mutant in _CATALOGUES if mutant.name == name)
    return mutant
