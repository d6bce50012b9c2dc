"""Rows of the page, and how many of them are shown."""

from typing import Any

from broker.admin.page.facts import (
    CLIENTS_SHOWN_MAX,
    SUBSCRIPTIONS_SHOWN_MAX,
    TOPICS_SHOWN_MAX,
    row_of,
    shown_rows,
    shown_stats,
    sum_of,
    sums_by_namespace,
)


def row(name: str, **numbers: float) -> dict[str, Any]:
    return row_of(name, {"pulsar_rate_in": numbers.get("rate_in", 0), "pulsar_msg_backlog": numbers.get("backlog", 0)})


def test_sums_count_the_topics_of_all_brokers() -> None:
    one, other = sum_of([row("a", rate_in=1), row("b", rate_in=2)]), sum_of([row("c", backlog=5)])
    found = sums_by_namespace([{"t/n": one}, {"t/n": other, "t/m": other, "odd": "text"}])
    assert found["t/n"]["topics"] == 3
    assert found["t/n"]["rate_in"] == 3
    assert found["t/n"]["backlog"] == 5
    assert found.keys() == {"t/n", "t/m"}


def test_the_busiest_topics_come_first_then_those_with_a_backlog_then_by_name() -> None:
    told: dict[str, list[object]] = {
        "one:1": [row("b", backlog=9), row("c", rate_in=1)],
        "two:2": [row("hidden", rate_in=99), "text"],
    }
    rows, total = shown_rows(["a", "b", "c"], told, "")
    assert [found["name"] for found in rows] == ["c", "b", "a"]
    assert [found["is_open"] for found in rows] == [True, True, False]
    assert rows[0]["broker"] == "one:1"
    assert total == 3


def test_topics_are_found_by_a_part_of_their_name() -> None:
    rows, total = shown_rows(["orders", "paid-orders", "x"], {}, "ord")
    assert [found["name"] for found in rows] == ["orders", "paid-orders"]
    assert total == 2


def test_so_many_topics_are_shown_and_the_others_counted() -> None:
    rows, total = shown_rows([f"topic{number}" for number in range(TOPICS_SHOWN_MAX + 7)], {}, "")
    assert len(rows) == TOPICS_SHOWN_MAX
    assert total == TOPICS_SHOWN_MAX + 7


def subscription(backlog: int, consumers: int) -> dict[str, Any]:
    return {"msgBacklog": backlog, "type": "Shared", "consumers": [{"unackedMessages": at} for at in range(consumers)]}


def test_so_many_subscriptions_and_clients_are_shown_and_the_others_counted() -> None:
    many = CLIENTS_SHOWN_MAX + 3
    stats = {
        "storageSize": 1, "backlogSize": 1, "msgInCounter": 1, "bytesInCounter": 1, "deduplicationStatus": "Disabled",
        "publishers": [{"msgRateIn": float(at), "metadata": {"secret": "x"}} for at in range(many)],
        "subscriptions": {f"s{at}": subscription(at, many) for at in range(SUBSCRIPTIONS_SHOWN_MAX + 5)},
    }  # fmt: skip
    found = shown_stats(stats)
    assert len(found["publishers"]) == CLIENTS_SHOWN_MAX
    assert found["publishers_total"] == many
    assert found["publishers"][0] == {"msgRateIn": many - 1.0}
    assert len(found["subscriptions"]) == SUBSCRIPTIONS_SHOWN_MAX
    assert found["subscriptions_total"] == SUBSCRIPTIONS_SHOWN_MAX + 5
    first = found["subscriptions"][0]
    assert first["name"] == f"s{SUBSCRIPTIONS_SHOWN_MAX + 4}", "the largest backlog first"
    assert len(first["consumers"]) == CLIENTS_SHOWN_MAX
    assert first["consumers_total"] == many
    assert first["consumers"][0] == {"unackedMessages": many - 1}
