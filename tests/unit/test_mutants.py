"""Each seeded bug still has its place in the sources; a bug without one would prove nothing."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import MUTANTS, ROOT
from tests.mutants.catalogue import Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_place_is_there_once_and_its_tests_are_there(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    assert text.count(mutant.old) == 1
    compile(text.replace(mutant.old, mutant.new), mutant.path, "exec")
    files = [Path(name.partition("::")[0]) for name in mutant.tests if name.endswith(".py") or "::" in name]
    assert files
    assert all((ROOT / file).exists() for file in files)


def test_no_two_have_one_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
