"""Bookies that failed lately."""

from typing import Any

import pytest

from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from tests.support.manual_clock import ManualClock


async def test_a_bookie_that_fails_again_is_told_of_once_and_avoided_longer(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    nowhere: Any = None
    pool = ConnectionPool(nowhere, clock, ClientConfig(quarantine_s=10.0))
    with caplog.at_level("INFO"):
        for _ in range(3):
            pool.failed("bookie-1")
            clock.advance(6)
    assert caplog.messages == ["bookie bookie-1 failed: new ensembles avoid it for 10 s"]
    assert pool.quarantined == {"bookie-1"}
    clock.advance(6)
    assert pool.quarantined == frozenset()
