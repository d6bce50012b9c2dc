"""The command line on a real cluster: what people type, and what the doctor says when something is broken."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.admin_client import AdminClient
from magnetar.cluster import Cluster
from tests.support.processes import client_of, cluster_of, until
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

TOPIC = "persistent://public/default/orders"
TIMEOUT_S = 90


class Shell:
    """Types `magnetar …` for one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.environment = {
            "MAGNETAR_ADMIN_URL": ",".join(cluster.admin_urls),
            "MAGNETAR_SERVICE_URL": cluster.service_url,
            "MAGNETAR_METADATA_URL": cluster.metadata_url,
        }

    def run(self, *arguments: str, code: int = 0, **options: Any) -> str:
        found: subprocess.CompletedProcess[str] = subprocess.run(
            [sys.executable, "-m", "magnetar", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, **self.environment}, **options,
        )  # fmt: skip
        assert found.returncode == code, (arguments, found.stdout, found.stderr)
        return found.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with cluster_of(tmp_path_factory.mktemp("cli"), bookies=3, brokers=1) as cluster:
        yield Shell(cluster)


@pytest.fixture(scope="module")
def written(shell: Shell) -> str:
    """A topic with 30 messages and a subscription that has read none of them."""
    shell.run("topics", "create", TOPIC)
    shell.run("subscriptions", "create", TOPIC, "billing", "--from", "earliest")
    lines = "\n".join(f"order {number}" for number in range(30))
    assert shell.run("produce", TOPIC, "-f", "-", input=lines) == "30 messages acknowledged\n"
    return TOPIC


def test_subscriptions_are_listed_moved_and_measured(shell: Shell, written: str) -> None:
    assert shell.run("subscriptions", "list", written) == "billing\n"
    (lag,) = shell.json("lag", written)
    assert (lag["subscription"], lag["consumers"]) == ("billing", 0)
    backlog = lag["backlog"]
    assert 1 <= backlog <= 30, "entries, of one or more messages"
    shell.run("subscriptions", "clear", written, "billing")
    assert shell.json("lag", written)[0]["backlog"] == 0
    shell.run("subscriptions", "seek", written, "billing", "1h")
    assert shell.json("lag", "--namespace", "public/default")[0]["backlog"] == backlog
    shell.run("subscriptions", "seek", written, "billing", "earliest")
    assert "billing" in shell.run("lag", written)
    shell.run("subscriptions", "create", written, "second")
    shell.run("subscriptions", "delete", written, "second")
    assert shell.json("subscriptions", "list", written) == ["billing"]


def test_the_last_messages_are_shown(shell: Shell, written: str) -> None:
    shown = shell.run("tail", written, "-n", "3").splitlines()
    assert [line.split("  ")[-1] for line in shown] == ["order 27", "order 28", "order 29"]
    last = shell.json("topics", "last-id", written)
    assert shell.run("topics", "last-id", written) == f"{last['ledgerId']}:{last['entryId']}\n"


def test_tenants_namespaces_and_policies_are_kept(shell: Shell) -> None:
    shell.run("tenants", "create", "shop")
    assert "shop" in shell.json("tenants", "list")
    assert shell.json("tenants", "show", "shop")["allowedClusters"]
    shell.run("namespaces", "create", "shop/orders", "--bundles", "2")
    assert shell.run("namespaces", "list", "shop") == "shop/orders\n"
    shell.run("namespaces", "set-retention", "shop/orders", "--minutes", "60", "--megabytes", "100")
    shell.run("namespaces", "set-policy", "shop/orders", "deduplication", "true")
    assert json.loads(shell.run("namespaces", "get-policy", "shop/orders", "deduplication")) is True
    shown = shell.json("namespaces", "show", "shop/orders")
    assert shown["retention_policies"] == {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}
    shell.run("namespaces", "unload", "shop/orders")
    shell.run("namespaces", "delete", "shop/orders")
    shell.run("tenants", "delete", "shop")
    assert "shop" not in shell.json("tenants", "list")


def test_schemas_go_up_and_are_shown(shell: Shell, tmp_path: Path) -> None:
    record = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(record))
    topic = "persistent://public/default/with-schema"
    shell.run("topics", "create", topic)
    assert shell.run("schemas", "upload", topic, str(file)) == "version 0\n"
    assert shell.json("schemas", "show", topic)["type"] == "AVRO"
    assert json.loads(shell.run("schemas", "show", topic).partition("\n")[2]) == record
    file.write_text(json.dumps({**record, "fields": [{"name": "id", "type": "string"}]}))
    assert "not compatible" in shell.run("schemas", "upload", topic, str(file), "--check", code=2)
    assert len(shell.json("schemas", "list", topic)) == 1


def test_brokers_tell_how_they_are(shell: Shell) -> None:
    (name,) = shell.json("brokers", "list")
    assert f"{name}  leader" in shell.run("brokers", "list")
    assert shell.run("brokers", "health") == "ok\n"
    assert shell.json("brokers", "config", "EnsembleSize") == {"managedLedgerDefaultEnsembleSize": "2"}
    assert "pulsar_" in shell.run("brokers", "metrics")


def test_a_ledger_is_shown_entry_by_entry_with_every_copy(shell: Shell, written: str) -> None:
    ledger_id = shell.json("topics", "ledgers", written)["ledgers"][-1]["ledgerId"]
    assert str(ledger_id) in shell.run("topics", "ledgers", written)
    found = shell.json("ledgers", "show", str(ledger_id), "--all")
    assert found["state"] == "OPEN"
    assert found["custom"]["pulsar/managed-ledger"] == "public/default/persistent/orders"
    assert [entry["entry_id"] for entry in found["entries"]] == list(range(found["last_entry_there"] + 1))
    for entry in found["entries"]:
        assert [copy["verdict"] for copy in entry["copies"]] == ["good", "good"] + ["good"] * (
            found["write_quorum"] - 2
        )
        assert entry["last_add_confirmed"] < entry["entry_id"]
    text = shell.run("ledgers", "show", str(ledger_id))
    assert re.search(r"^0 +-1 .* good .*order 0", text, re.M)
    payload = shell.run("ledgers", "read", str(ledger_id), "0", errors="replace")
    assert "order 0" in payload
    assert str(ledger_id) in {str(one["ledger_id"]) for one in shell.json("ledgers", "list")}
    # Looking has not disturbed who writes.
    assert shell.run("produce", written, "-m", "one more") == "1 messages acknowledged\n"


def test_ledgers_that_are_not_there_are_named(shell: Shell) -> None:
    shell.run("ledgers", "show", "999999", code=2)


def test_lines_of_json_become_values_of_the_schema_and_back(shell: Shell, tmp_path: Path) -> None:
    record = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(record))
    values = [{"id": 1, "note": "first"}, {"id": 2, "note": None}]
    lines = "\n".join(map(json.dumps, values))
    for kind in ("AVRO", "JSON"):
        topic = f"persistent://public/default/values-{kind.lower()}"
        shell.run("topics", "create", topic)
        shell.run("schemas", "upload", topic, str(file), "--type", kind)
        assert shell.run("produce", topic, "--schema", "-f", "-", input=lines) == "2 messages acknowledged\n"
        read = [json.loads(line) for line in shell.run("read", topic, "--json").splitlines()]
        assert [one["value"] for one in read] == values
        assert '{"id": 1, "note": "first"}' in shell.run("read", topic)
        shell.run("produce", topic, "--schema", "-m", '{"id": "one"}', code=2)
    raw = shell.run("tail", "persistent://public/default/values-avro", "--raw", "-n", "1")
    assert "note" not in raw


def levels(found: list[dict[str, str]]) -> dict[str, str]:
    return {one["where"]: one["level"] for one in found}


def test_the_doctor_finds_what_is_broken(shell: Shell, written: str) -> None:
    """One after the other: nothing, a subscription that nobody answers, a bookie that is gone, a broker, ZooKeeper."""
    cluster = shell.cluster
    assert shell.json("doctor") == []
    assert shell.run("doctor").startswith("fine  3 bookies, 1 brokers, ")

    with client_of(cluster.service_url) as client:
        consumer = client.subscribe(written, "billing", receiver_queue_size=1)
        until(
            lambda: AdminClient(cluster.admin_urls).stats(written)["subscriptions"]["billing"]["consumers"], "consumes"
        )
        found = shell.json("doctor", code=1)
        (stuck,) = [one for one in found if one["where"].startswith("subscription billing")]
        assert "none of its 1 consumers asks for more" in stuck["text"]
        consumer.close()

    (ledger,) = [one for one in shell.json("ledgers", "list") if one["ledger_id"] == _first_ledger(shell, written)]
    names = {f"127.0.0.1:{one.port}": one.name for one in cluster.state.members if one.kind == "bookie"}
    gone, kept = (names.pop(bookie) for bookie in ledger["segments"][-1]["ensemble"])
    (other,) = names.values()
    cluster.kill(gone)
    until(lambda: "away" in shell.run("bookies", "list"), "the session of the bookie ends")
    found = levels(shell.json("doctor", code=1))
    assert found.pop("bookies") == "WARNING", "two are left for ensembles of two"
    (away,) = found
    assert away.startswith("bookie ")
    assert "→ start it again" in shell.run("doctor", code=1)
    seen = shell.json("ledgers", "show", str(ledger["ledger_id"]), code=2)
    assert {copy["verdict"] for entry in seen["entries"] for copy in entry["copies"]} == {"good", "unreachable"}

    cluster.kill(other)
    until(lambda: shell.run("bookies", "list").count("away") == 2, "the session of the second one ends")
    assert levels(shell.json("doctor", code=2))["bookies"] == "ERROR"
    cluster.kill(kept)
    until(lambda: shell.run("bookies", "list").count("away") == 3, "the session of the third one ends")
    assert levels(shell.json("doctor", code=2))["copies"] == "ERROR"
    for name in (gone, kept, other):
        cluster.start(name)

    cluster.kill("broker-1")
    found = levels(shell.json("doctor", code=2))
    assert found["brokers"] == "ERROR"
    cluster.kill("zookeeper")
    (only,) = shell.json("doctor", code=2)
    assert only["where"] == cluster.metadata_url


def _first_ledger(shell: Shell, topic: str) -> int:
    managed_ledger = topic.replace("persistent://public/default/", "public/default/persistent/")
    found: list[dict[str, Any]] = shell.json("ledgers", "list")
    return min(int(one["ledger_id"]) for one in found if one["custom"].get("pulsar/managed-ledger") == managed_ledger)
