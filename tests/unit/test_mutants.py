"""Each seeded bug, and each fault of the history, still has its place in the sources: without it, it proves nothing."""

import re
from pathlib import Path

import pytest

from tests.mutants.__main__ import MUTANTS, ROOT
from tests.mutants.catalogue import Mutant
from tests.mutants.history import HISTORY, faults

ALL = tuple(dict.fromkeys((*MUTANTS, *faults())))


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_its_place_is_there_once_and_its_tests_are_there(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    assert text.count(mutant.old) == 1
    compile(text.replace(mutant.old, mutant.new), mutant.path, "exec")
    files = [Path(name.partition("::")[0]) for name in mutant.tests if name.endswith(".py") or "::" in name]
    assert files
    assert all((ROOT / file).exists() for file in files)


def test_no_two_have_one_name() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL)


def test_each_fault_of_the_history_says_who_mended_it_and_what_was_seen() -> None:
    assert len({mended.fault for mended in HISTORY}) == len(HISTORY)
    for mended in HISTORY:
        assert re.fullmatch("[0-9a-f]{8}", mended.commit)
        assert re.fullmatch(r"[A-Z].{20,130}\.", mended.seen), mended.seen
