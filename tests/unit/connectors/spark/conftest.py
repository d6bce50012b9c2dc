"""Streams of these tests wait a tenth as long as others until an entry counts as settled (`connectors.spark.follower`,
rule 2): each query that ends with what there is waits for it twice."""

import pytest

from connectors.spark import follower


@pytest.fixture(autouse=True)
def _settles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "SETTLED_S", follower.SETTLED_S / 10)
