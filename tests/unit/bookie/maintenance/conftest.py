"""Fixtures of the tests of maintenance."""

import pytest


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of copies looks twice a second, and not every five."""
    monkeypatch.setattr("bookie.maintenance.integrity.LOOK_S", 0.5)
