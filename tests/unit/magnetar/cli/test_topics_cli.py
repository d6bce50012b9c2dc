"""`magnetar topics`: several topics at a time, who is connected, moves between brokers, names of policies."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.http_fake import HttpFake, http_fake
from tests.unit.magnetar.cli.test_cli import ADMIN, run

BROKERS = "/admin/v2/brokers"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpFake]:
    with http_fake() as made:
        monkeypatch.setenv("MAGNETAR_ADMIN_URL", made.url)
        yield made


def with_topics(fake: HttpFake) -> None:
    fake.answer("GET", f"{ADMIN}/partitioned", ["persistent://public/default/test-parted"])
    names = ("test-parted-partition-0", "test-1", "test-2", "orders", "my-test-3")
    fake.answer("GET", ADMIN, [f"persistent://public/default/{name}" for name in names])
    fake.answer("GET", f"{ADMIN}/test-parted/partitions", {"partitions": 1})
    for name in ("test-1", "test-2"):
        fake.answer("GET", f"{ADMIN}/{name}/partitions", {"partitions": 0})
        fake.answer("DELETE", f"{ADMIN}/{name}?force=false", status=204)
    fake.answer("DELETE", f"{ADMIN}/test-parted/partitions?force=false", status=204)


def deleted(fake: HttpFake) -> list[str]:
    return sorted(path.partition("?")[0] for method, path, *_ in fake.asked if method == "DELETE")


@pytest.mark.parametrize("pattern", ["test-.*", "public/default/test-.*", "persistent://public/default/test-.*"])
def test_topics_that_fit_an_expression_are_shown_and_deleted_only_with_a_yes(fake: HttpFake, pattern: str) -> None:
    with_topics(fake)
    shown = "".join(f"persistent://public/default/{name}\n" for name in ("test-1", "test-2", "test-parted"))
    dry = run("topics", "delete", "--pattern", "--dry-run", pattern)
    assert (dry.exit_code, dry.output) == (0, f"{shown}not deleted\n")
    asked = run("topics", "delete", "--pattern", "--force", pattern)
    assert asked.exit_code != 0
    assert asked.output.startswith(shown)
    assert "Delete these 3 topics with all their messages and subscriptions? Nobody can be asked here: add --yes" in (
        asked.output
    )
    assert deleted(fake) == []
    assert run("topics", "delete", "--pattern", "--yes", pattern).output == f"{shown}deleted\n"
    assert deleted(fake) == [f"{ADMIN}/test-1", f"{ADMIN}/test-2", f"{ADMIN}/test-parted/partitions"]


def test_an_expression_that_fits_nothing_or_is_none(fake: HttpFake) -> None:
    with_topics(fake)
    assert run("topics", "delete", "--pattern", "--yes", "none.*").output == "no topic fits\nnot deleted\n"
    assert "is not a regular expression" in run("topics", "delete", "--pattern", "[").output
    alone = run("topics", "delete", "--dry-run", "--json", "orders")
    assert json.loads(alone.output) == {"topics": ["orders"], "deleted": False}


def test_a_topic_moves_with_its_bundle_to_a_broker_that_is_there(fake: HttpFake) -> None:
    fake.answer("GET", BROKERS, ["b1:8080", "b2:8080"])
    fake.answer("GET", f"{ADMIN}/orders/partitions", {"partitions": 2})
    for number in range(2):
        path = f"/lookup/v2/topic/persistent/public/default/orders-partition-{number}/bundle"
        fake.answer("GET", path, "0x00000000_0x80000000")
    unload = "/admin/v2/namespaces/public/default/0x00000000_0x80000000/unload?destinationBroker=b2%3A8080"
    fake.answer("PUT", unload, status=204)
    wrong = run("topics", "move", "orders", "b3:8080", "--yes")
    assert "b3:8080 is not a broker of this cluster: choose from b1:8080, b2:8080" in wrong.output
    asked = run("topics", "move", "orders", "b2:8080")
    assert "with all topics of its bundles public/default/0x00000000_0x80000000? Nobody can be asked" in asked.output
    moved = run("topics", "move", "orders", "b2:8080", "--yes", "--json")
    assert json.loads(moved.output) == {
        "topic": "orders", "broker": "b2:8080", "bundles": ["public/default/0x00000000_0x80000000"],
    }  # fmt: skip
    assert [path for method, path, *_ in fake.asked if method == "PUT"] == [unload]


def stats(publishers: list[dict[str, Any]], **subscriptions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "publishers": publishers,
        "subscriptions": {name: {"consumers": consumers} for name, consumers in subscriptions.items()},
    }


def test_who_is_connected_to_a_topic(fake: HttpFake) -> None:
    fake.answer("GET", f"{ADMIN}/orders/partitions", {"partitions": 0})
    fake.answer("GET", f"{ADMIN}/orders/stats", stats([]))
    assert run("topics", "clients", "orders").output == "nobody is connected to orders\n"
    facts = {"address": "/10.0.0.7:1", "connectedSince": "2026-01-02T03:04:05Z", "clientVersion": "Go 1"}
    producer = {**facts, "producerName": "web", "msgRateIn": 2.5}
    consumer = {**facts, "consumerName": "w\x1b1", "msgRateOut": 1.0, "availablePermits": 990}
    fake.answer("GET", f"{ADMIN}/orders/stats", stats([producer], billing=[consumer]))
    rows = json.loads(run("topics", "clients", "orders", "--json").output)
    assert [(row["kind"], row["subscription"], row["name"], row["rate"], row["permits"]) for row in rows] == [
        ("producer", "", "web", 2.5, 0),
        ("consumer", "billing", "w\x1b1", 1.0, 990),
    ]
    text = run("topics", "clients", "orders").output
    assert "\x1b" not in text
    assert "billing" in text
    assert "partition" not in text
    fake.answer("GET", f"{ADMIN}/orders/partitions", {"partitions": 2})
    for number, producers in enumerate(([], [producer])):
        fake.answer("GET", f"{ADMIN}/orders-partition-{number}/partitions", {"partitions": 0})
        fake.answer("GET", f"{ADMIN}/orders-partition-{number}/stats", stats(producers))
    header, line = run("topics", "clients", "orders").output.splitlines()
    assert header.split()[0] == "partition"
    assert line.split()[:3] == ["1", "producer", "web"]


@pytest.mark.parametrize(
    ("group", "target", "path", "wrong", "right"),
    [
        ("topics", "orders", f"{ADMIN}/orders", "maxConsumer", "maxConsumers"),
        ("namespaces", "a/b", "/admin/v2/namespaces/a/b", "retentions", "retention"),
    ],
)
def test_names_of_policies_are_in_the_help_and_near_to_a_wrong_one(
    fake: HttpFake, group: str, target: str, path: str, wrong: str, right: str
) -> None:
    assert right in run(group, "set-policy", "--help").output.partition("Policies:")[2]
    for status in (404, 405, 501):  # ours answer 501
        fake.answer("POST", f"{path}/{wrong}", {"reason": "it is not there"}, status=status)
        refused = run(group, "set-policy", target, wrong, "1")
        assert f"{wrong} is not a policy that is known here: did you mean {right}" in refused.output
    fake.answer("POST", f"{path}/{right}", {"reason": "Topic not found"}, status=404)
    assert "did you mean" not in run(group, "set-policy", target, right, "1").output
    fake.answer("GET", f"{path}/zzz", {"reason": "HTTP 404 Not Found"}, status=404)
    assert "--help lists those of our brokers" in run(group, "get-policy", target, "zzz").output


@pytest.mark.parametrize(
    ("group", "target", "path"),
    [("topics", "orders", f"{ADMIN}/orders"), ("namespaces", "a/b", "/admin/v2/namespaces/a/b")],
)
def test_a_backlog_quota_is_set_and_read_by_one_name(fake: HttpFake, group: str, target: str, path: str) -> None:
    assert "backlogQuota" in run(group, "set-policy", "--help").output.partition("Policies:")[2]
    fake.answer("POST", f"{path}/backlogQuota", status=204)
    fake.answer("DELETE", f"{path}/backlogQuota", status=204)
    assert run(group, "set-policy", target, "backlogQuota", '{"limitSize": 7}').output == "set\n"
    assert run(group, "set-policy", target, "backlogQuota", "null").output == "removed\n"
    fake.answer("GET", f"{path}/backlogQuotaMap", {"destination_storage": {"limitSize": 7}})
    read = run(group, "get-policy", target, "backlogQuota")
    assert json.loads(read.output) == {"destination_storage": {"limitSize": 7}}


def test_writes_to_a_namespace_are_stopped_and_allowed_again(fake: HttpFake) -> None:
    path = "/admin/v2/namespaces/a/b/property/magnetar.writes"
    fake.answer("PUT", f"{path}/stopped", status=204)
    fake.answer("DELETE", path, "stopped")
    assert run("namespaces", "stop-writes", "a/b").output == "writes are stopped\n"
    assert run("namespaces", "allow-writes", "a/b").output == "writes are allowed\n"
    assert [(method, asked) for method, asked, _ in fake.asked] == [("PUT", f"{path}/stopped"), ("DELETE", path)]
