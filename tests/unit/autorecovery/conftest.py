"""Fixtures of the tests of auto-recovery."""

import pytest

from autorecovery.lifecycle import drain, draining
from autorecovery.reporting import reports


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drains are looked at, and workers report, many times a second."""
    monkeypatch.setattr(reports, "_REPORT_S", 0.02)
    monkeypatch.setattr(drain, "SETTLE_S", 0.02)
    monkeypatch.setattr(draining, "_LOOK_S", 0.02)
    monkeypatch.setattr(drain, "RECHECK_S", 0.1)
    monkeypatch.setattr(drain, "TURN_S", 0.1)
    monkeypatch.setattr(drain, "TURN_AGAIN_S", 0.2)
    monkeypatch.setattr(drain, "CONFIRM_S", 0.15)
