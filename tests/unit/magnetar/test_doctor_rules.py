"""Facts about a cluster, and what the doctor makes of them."""

from dataclasses import replace

import pytest

from magnetar.doctor_rules import (
    BookieFacts,
    BrokerFacts,
    ClusterFacts,
    Level,
    SubscriptionFacts,
    examine,
    exit_code,
)

GIB = 1 << 30


def bookie(name: str, state: str = "writable", **facts: object) -> BookieFacts:
    return replace(BookieFacts(name, state, 100 * GIB, 60 * GIB), **facts)  # type: ignore[arg-type]


def subscription(**facts: object) -> SubscriptionFacts:
    usual = SubscriptionFacts("orders", "billing", "Shared", 500, 10, 2, 1_000, is_blocked=False)
    return replace(usual, **facts)  # type: ignore[arg-type]


FINE = ClusterFacts(
    "zk:a:1",
    metadata_s=0.01,
    bookies=tuple(bookie(name) for name in ("b1", "b2", "b3", "b4")),
    ensemble_size=3,
    brokers=(BrokerFacts("br1", "http://br1"),),
    ledgers=10,
    ledgers_looked_at=10,
    subscriptions=(subscription(),),
)


def test_a_cluster_that_is_well_has_no_findings() -> None:
    assert examine(FINE) == []
    assert exit_code([]) == 0


@pytest.mark.parametrize(
    ("facts", "level", "where", "words"),
    [
        ({"metadata_error": "no answer"}, 2, "zk:a:1", "no answer"),
        ({"metadata_s": 2.0}, 1, "zk:a:1", "took 2.0 s"),
        ({"bookies": ()}, 2, "bookies", "there is no bookie"),
        ({"bookies": (bookie("b1"), bookie("b2"))}, 2, "bookies", "2 of 2 take new entries, and a new ledger needs 3"),
        ({"bookies": (bookie("b1"), bookie("b2"), bookie("b3"))}, 1, "bookies", "none may fail"),
        ({"bookies": (*FINE.bookies, bookie("b5", error="refused"))}, 2, "bookie b5", "does not answer: refused"),
        (
            {"bookies": (*FINE.bookies, bookie("b5", "read-only", reasons=("operator: update",)))},
            1, "bookie b5", "read-only (operator: update)",
        ),
        ({"bookies": (*FINE.bookies, bookie("b5", free_bytes=10 * GIB))}, 1, "bookie b5", "90 % full"),
        ({"bookies": (*FINE.bookies, bookie("b5", free_bytes=GIB))}, 2, "bookie b5", "99 % full"),
        ({"bookies": (*FINE.bookies, bookie("b5", skew_s=-30.0))}, 1, "bookie b5", "30 s behind"),
        ({"lost_copies": {"b9": 4}}, 1, "bookie b9", "4 ledgers have copies on it"),
        ({"unguarded": 2}, 2, "copies", "cannot be read"),
        ({"under_replicated": (7, 8)}, 1, "copies", "2 ledgers are marked as under-replicated (7, 8); nobody"),
        ({"under_replicated": (7,), "auditor": "V_1"}, 1, "copies", "1 ledgers are marked as under-replicated (7)"),
        ({"replication_disabled": True}, 1, "auto-recovery", "switched re-replication off"),
        ({"ledgers": 20}, 0, "copies", "10 of 20 ledgers were looked at"),
        ({"brokers_error": "no broker answers", "brokers": ()}, 2, "brokers", "no broker answers"),
        ({"brokers": ()}, 2, "brokers", "no broker is registered"),
        ({"brokers": (BrokerFacts("br1", "http://br1", error="timed out"),)}, 2, "broker br1", "timed out"),
        ({"brokers": (BrokerFacts("br1", "http://br1", health="no ledger"),)}, 2, "broker br1", "no ledger"),
        ({"brokers": (BrokerFacts("br1", "http://br1", skew_s=8.0),)}, 1, "broker br1", "8 s ahead"),
        ({"subscriptions_error": "HTTP 500"}, 1, "subscriptions", "HTTP 500"),
        ({"subscriptions": (subscription(is_blocked=True),)}, 2, "subscription billing of orders", "stuck: 10"),
        ({"subscriptions": (subscription(permits=0),)}, 1, "subscription billing of orders", "none of its 2 consumers"),
        ({"subscriptions": (subscription(consumers=0, backlog=10**6),)}, 1, "subscription billing of orders", "nobody"),
    ],
)  # fmt: skip
def test_each_trouble_is_named_with_a_way_out(facts: dict[str, object], level: int, where: str, words: str) -> None:
    (found,) = examine(replace(FINE, **facts))  # type: ignore[arg-type]
    assert (found.level, found.where) == (Level(level), where)
    assert words in found.text
    assert found.way_out or found.level == Level.INFO or where == "subscriptions"
    assert exit_code([found]) == level


@pytest.mark.parametrize("facts", [{"backlog": 0, "is_blocked": True}, {"consumers": 0}, {"backlog": 0, "permits": 0}])
def test_a_subscription_without_trouble_is_left_alone(facts: dict[str, object]) -> None:
    assert examine(replace(FINE, subscriptions=(subscription(**facts),))) == []


def test_the_worst_comes_first_and_gives_the_exit_code() -> None:
    found = examine(replace(FINE, ledgers=99, metadata_s=1.0, unguarded=1))
    assert [one.level for one in found] == [Level.ERROR, Level.WARNING, Level.INFO]
    assert exit_code(found) == 2
