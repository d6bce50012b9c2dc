"""Every recorded file is used by a golden test, and the list of known differences names things that exist."""

import importlib
from pathlib import Path

from tests.golden.known_differences import KNOWN_DIFFERENCES
from tests.support.golden import COVERAGE, DECODES, ENCODES, OPENS, REFUSES, REPLAYS, concerns, names

MODULES = [
    importlib.import_module(f"tests.golden.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("test_*.py"))
    if path.stem != Path(__file__).stem
]

# Modules that read files which another module covers, with another part of the product.
SECOND_READERS = {
    "tests.golden.test_admin_bodies": "test_http",
    "tests.golden.test_records": "test_managed_ledger_records",
    "tests.golden.test_spark_rows": "test_entries",
}

# Files that describe other files.
NOT_RECORDED = {"README.md"}

# Files that Java's keytool made; tests/unit/magnetar_core/security/tls/test_key_stores.py reads them.
KEY_STORES = set(names("key-stores/**/*"))

# Settings of each line; tests/unit/broker/settings/test_lines.py reads them.
LINES = set(names("lines/*"))


def test_every_file_is_claimed_by_a_golden_test() -> None:
    claimed = set[str]().union(*(coverage.all_files() for coverage in COVERAGE))
    there = set(names("**/*")) - NOT_RECORDED - KEY_STORES - LINES
    assert sorted(there - claimed) == [], "files that no golden test uses"
    assert sorted(claimed - there) == [], "files that a golden test claims and that are not there"


def test_a_declared_test_runs_for_exactly_the_files_that_it_claims() -> None:
    for coverage in COVERAGE:
        module, _, name = coverage.test.rpartition(".")
        test = getattr(importlib.import_module(module), name)
        marks = [mark for mark in test.pytestmark if mark.name == "parametrize" and mark.args[0] == "vector"]
        assert [tuple(mark.args[1]) for mark in marks] == [coverage.files], coverage.test


def test_every_declaration_says_what_it_does() -> None:
    for coverage in COVERAGE:
        assert coverage.how, coverage.test
        assert coverage.how <= {DECODES, ENCODES, REPLAYS, OPENS, REFUSES}, coverage.test
        assert len(coverage.compared) > 20, coverage.test


def test_every_golden_module_declares_its_files() -> None:
    declared = {coverage.test.rpartition(".")[0] for coverage in COVERAGE}
    assert {f"tests.golden.{claims}" for claims in SECOND_READERS.values()} <= declared
    undeclared = {module.__name__ for module in MODULES if module.__name__ not in declared}
    assert undeclared == set(SECOND_READERS)


def test_known_differences_name_tests_and_files_that_exist_and_give_reasons() -> None:
    files = {coverage.test.rpartition(".")[2]: coverage.files for coverage in COVERAGE}
    for test, listed in KNOWN_DIFFERENCES.items():
        assert test in files, test
        for key, reason in listed.items():
            assert any(concerns(key, file) for file in files[test]), f"{test}: {key} names no file"
            assert len(reason) > 10, f"{test}: {key} has no reason"


def test_names_of_golden_tests_are_unique() -> None:
    found = [coverage.test.rpartition(".")[2] for coverage in COVERAGE]
    assert len(found) == len(set(found))
