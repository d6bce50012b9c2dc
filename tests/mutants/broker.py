"""x"""

from tests.mutants.catalogue import Mutant

MUTANTS: tuple[Mutant, ...] = ()
