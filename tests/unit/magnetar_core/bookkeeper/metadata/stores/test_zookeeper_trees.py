"""The watch of a tree that a server does not take again after a reconnect; with a real one in the conformance suite."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar_core.bookkeeper.metadata.stores.zookeeper import _TREE_RETRY_S, ZooKeeperStore
from tests.support.manual_clock import ManualClock


@pytest.fixture
def store() -> Any:
    """What a refusal looks at."""
    found = SimpleNamespace(_closed=False, _clock=ManualClock(), _connected=asyncio.Event(), done=[])
    found._connected.set()
    found._arm_tree = found.done.append
    found._watches = SimpleNamespace(watched_trees={"/a"}, all_trees_changed=lambda: found.done.append("all"))
    return found


def refused(store: Any, path: str = "/a") -> list[str]:
    """What is done a while behind a refusal."""
    ZooKeeperStore._on_tree_refused(store, path, RuntimeError("no rights"))
    assert store.done == []
    store._clock.advance(_TREE_RETRY_S)
    done: list[str] = store.done
    return done


def test_it_is_set_a_while_later_and_what_may_have_happened_meanwhile_is_looked_at(store: Any) -> None:
    assert refused(store) == ["/a", "all"]


def test_nobody_waits_for_it_any_more(store: Any) -> None:
    assert refused(store, "/b") == []


@pytest.mark.parametrize("end", ["closed", "disconnected", "not watched"])
def test_meanwhile_it_may_have_become_needless(store: Any, end: str) -> None:
    ZooKeeperStore._on_tree_refused(store, "/a", RuntimeError("no rights"))
    if end == "closed":
        store._closed = True
    elif end == "disconnected":
        store._connected.clear()
    else:
        store._watches.watched_trees.clear()
    store._clock.advance(_TREE_RETRY_S)
    assert store.done == []
