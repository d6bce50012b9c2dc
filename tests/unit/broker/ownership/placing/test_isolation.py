"""Which brokers may serve a namespace, by isolation policies."""

import json
from typing import Any

import pytest

from broker.ownership.placing import isolation
from broker.ownership.placing.isolation import PATTERNS_MAX, candidates, host_of, is_pattern, parse_isolation
from magnetar_core.runtime.types import Corruption

HOSTS = {"a:1": "a", "b:1": "b", "c:1": "c", "c:2": "c"}


def policy(namespaces: str, primary: str, secondary: str = "", least: int = 1) -> dict[str, Any]:
    return {
        "namespaces": namespaces.split(),
        "primary": primary.split(),
        "secondary": secondary.split(),
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": str(least), "usage_threshold": "80"},
        },
    }


def serving(namespace: str, **policies: dict[str, Any]) -> set[str]:
    return candidates(namespace, HOSTS, parse_isolation(json.dumps(policies).encode(), "/node"))


@pytest.mark.parametrize(
    ("given", "namespace", "brokers"),
    [
        ({}, "t/n", "a:1 b:1 c:1 c:2"),
        ({"p": policy("t/n", "a")}, "t/n", "a:1"),
        ({"p": policy("t/n", "a", "b")}, "t/n", "a:1"),
        ({"p": policy("t/n", "a", "b", least=2)}, "t/n", "a:1 b:1"),
        ({"p": policy("t/n", "a", "b", least=0)}, "t/n", "a:1"),
        ({"p": policy("t/n", "gone", "b|c")}, "t/n", "b:1 c:1 c:2"),
        ({"p": policy("t/n", "gone")}, "t/n", ""),
        ({"p": policy("t/n", "a", "b")}, "t/other", "b:1 c:1 c:2"),
        ({"p": policy("t/n", "a"), "q": policy("x/y", "b c")}, "t/other", ""),
        ({"p": policy("t/.*", "a"), "q": policy("t/n", "b")}, "t/n", "a:1"),
        ({"p": policy("t", "a")}, "t/n", "b:1 c:1 c:2"),
        ({"p": policy("t/n", "c:1")}, "t/n", ""),
        ({"p": policy("[", "a")}, "t/n", "b:1 c:1 c:2"),
        ({"p": policy("t/n", "[ b")}, "t/n", "b:1"),
    ],
)
def test_a_namespace_is_served_by_those_that_are_for_it(given: dict[str, Any], namespace: str, brokers: str) -> None:
    assert serving(namespace, **given) == set(brokers.split())


@pytest.mark.parametrize(
    "value", [b"[]", b"{", b'{"p": 1}', b'{"p": {}}', json.dumps({"p": {**policy("a", "b"), "primary": [1]}}).encode()]
)
def test_a_node_that_holds_no_policies_is_damaged(value: bytes) -> None:
    with pytest.raises(Corruption, match="/node"):
        parse_isolation(value, "/node")


def test_an_empty_node_has_no_policies() -> None:
    assert parse_isolation(b"", "/node") == ()


def test_a_broker_is_known_by_its_host() -> None:
    assert [host_of(one) for one in ("node-1:8080", "[::1]:8080", "node")] == ["node-1", "[::1]", "node"]


def test_only_so_many_patterns_are_kept_compiled() -> None:
    assert all(is_pattern(f"t/{number}") for number in range(PATTERNS_MAX + 10))
    assert isolation._compiled.cache_info().currsize == PATTERNS_MAX
