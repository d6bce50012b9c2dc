"""An online rebuild names some problems and counts the others; it counts locations for each ledger."""

import pytest

from bookie.maintenance.rebuild.findings import Findings


def test_problems_beyond_the_limit_are_counted_but_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.rebuild.findings.NAMED_MAX", 2)
    findings = Findings()
    for text in ("a", "b", "c"):
        findings.add_problem(text)
    assert (findings.problem_count, findings.problems) == (3, ["a", "b"])


def test_locations_are_counted_for_each_ledger() -> None:
    findings = Findings()
    findings.add_located([1, 2, 1])
    findings.add_located([1])
    assert (findings.located(1), findings.located(2), findings.located(3)) == (3, 1, 0)
    findings.forget_located()
    assert findings.located(1) == 0
