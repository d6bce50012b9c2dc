"""The command line on a real cluster: what people type."""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.testing.servers import new_namespace
from tests.support.processes import until
from tests.support.raw_producer import RawProducer
from tests.support.shared_cluster import SharedCluster
from tests.support.shell import Shell
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.fixture(scope="module")
def shell(_shared_cluster: SharedCluster) -> Shell:
    return Shell(_shared_cluster.whole())


@pytest.fixture(scope="module")
def namespace(shell: Shell) -> str:
    return new_namespace(shell.cluster.admin_urls, "cli")


@pytest.fixture(scope="module")
def written(shell: Shell, namespace: str) -> str:
    """A topic with 30 messages and a subscription that has read none of them."""
    topic = f"persistent://{namespace}/orders"
    shell.run("topics", "create", topic)
    shell.run("subscriptions", "create", topic, "billing", "--from", "earliest")
    lines = "\n".join(f"order {number}" for number in range(30))
    assert shell.run("produce", topic, "-f", "-", input=lines) == "30 messages acknowledged\n"
    return topic


def test_subscriptions_are_listed_moved_and_measured(shell: Shell, namespace: str, written: str) -> None:
    assert shell.run("subscriptions", "list", written) == "billing\n"
    (lag,) = shell.json("lag", written)
    assert (lag["subscription"], lag["consumers"]) == ("billing", 0)
    backlog = lag["backlog"]
    assert 1 <= backlog <= 30, "entries, of one or more messages"
    shell.run("subscriptions", "clear", written, "billing")
    assert shell.json("lag", written)[0]["backlog"] == 0
    shell.run("subscriptions", "seek", written, "billing", "1h")
    assert shell.json("lag", "--namespace", namespace)[0]["backlog"] == backlog
    shell.run("subscriptions", "seek", written, "billing", "earliest")
    assert "billing" in shell.run("lag", written)
    shell.run("subscriptions", "create", written, "second")
    shell.run("subscriptions", "delete", written, "second", "--yes")
    assert shell.json("subscriptions", "list", written) == ["billing"]


def test_the_last_messages_are_shown(shell: Shell, written: str) -> None:
    shown = shell.run("tail", written, "-n", "3").splitlines()
    assert [line.split("  ")[-1] for line in shown] == ["order 27", "order 28", "order 29"]
    last = shell.json("topics", "last-id", written)
    assert shell.run("topics", "last-id", written).startswith(f"{last['ledgerId']}:{last['entryId']}:-1")


@pytest.mark.parametrize("verb", ["read", "tail"])
def test_a_misspelt_topic_is_neither_read_nor_made(shell: Shell, namespace: str, written: str, verb: str) -> None:
    misspelt = written + "s"
    assert misspelt in shell.refused(verb, misspelt)
    assert misspelt not in shell.run("topics", "list", namespace).split()


def test_every_form_of_an_id_that_is_shown_is_understood(shell: Shell, namespace: str) -> None:
    topic = f"persistent://{namespace}/ids"
    for number in range(3):
        shell.run("produce", topic, "-m", f"{number}-a", "-m", f"{number}-b")
    shown = [line.split("  ") for line in shell.run("read", topic).splitlines()]
    ids, values = zip(*shown, strict=True)
    assert values == ("0-a", "0-b", "1-a", "1-b", "2-a", "2-b")
    assert [one["id"] for one in map(json.loads, shell.run("read", topic, "--json").splitlines())] == list(ids)
    for at, message_id in enumerate(ids):
        ledger, entry, partition, *batch = message_id.split(":")
        for text in (message_id, f"({ledger},{entry},{partition},{batch[0] if batch else -1})"):
            found = shell.run("read", topic, "--from", text).splitlines()
            assert [line.split("  ")[1] for line in found] == list(values[at:]), text
    third = f"{ids[2].split(':')[0]}:{ids[2].split(':')[1]}"
    assert shell.run("read", topic, "--from", third).count("\n") == 4
    assert shell.run("read", topic, "--from", "1h").count("\n") == 6
    assert shell.run("read", topic, "--from", "2099-01-01T00:00") == ""
    shell.run("subscriptions", "create", topic, "s", "--from", third)
    assert shell.run("consume", topic, "-s", "s", "-n", "1").endswith("1-a\n")
    shell.run("subscriptions", "seek", topic, "s", ids[4])
    assert shell.run("consume", topic, "-s", "s", "-n", "1").endswith("2-a\n")
    shell.run("subscriptions", "create", topic, "ago", "--from", "1h")
    for subscription in ("ago", "new"):
        assert shell.run("consume", topic, "-s", subscription, "--from", "1h", "-n", "1").endswith("0-a\n")
    assert shell.run("consume", topic, "-s", "third", "--from", third, "-n", "1").endswith("1-a\n")
    shell.run("read", topic, "--from", "yesterday", code=2)


def test_an_id_of_a_partition_is_found_there(shell: Shell, namespace: str) -> None:
    topic = f"persistent://{namespace}/ids-in-parts"
    shell.run("topics", "create", topic, "--partitions", "2")
    for key in "abcdef":
        shell.run("produce", topic, "-k", key, "-m", key)
    shown = [line.split("  ") for line in shell.run("read", topic).splitlines()]
    assert len(shown) == 6
    for at, (message_id, *_) in enumerate(shown):
        partition = message_id.split(":")[2]
        expected = [one for one in shown[at:] if one[0].split(":")[2] == partition]
        found = shell.run("read", topic, "--from", message_id).splitlines()
        assert [line.split("  ") for line in found] == expected
    shell.run("subscriptions", "create", topic, "s")
    shell.run("subscriptions", "seek", topic, "s", shown[0][0])
    shell.run("read", topic, "--from", "0:0:7", code=2)


def test_what_was_sent_and_received_is_summed_up_for_scripts(shell: Shell, namespace: str, tmp_path: Path) -> None:
    topic = f"persistent://{namespace}/summed"
    file = tmp_path / "lines"
    file.write_text("one\ntwo\nthree\n")
    sent = shell.json("produce", topic, "-f", str(file))
    assert {name: sent[name] for name in ("topic", "messages", "failed", "bytes")} == {
        "topic": topic, "messages": 3, "failed": 0, "bytes": 11,
    }  # fmt: skip
    assert sent["seconds"] >= 0
    *messages, last = map(json.loads, shell.run("consume", topic, "-s", "sum", "-n", "3", "--json").splitlines())
    assert [one["value"] for one in messages] == ["one", "two", "three"]
    summary = last["summary"]
    assert summary.pop("seconds") >= 0
    assert summary == {
        "topic": topic, "subscription": "sum", "messages": 3, "bytes": 11, "last_id": sent["last_id"],
    }  # fmt: skip
    assert messages[-1]["id"] == sent["last_id"]
    (lag,) = shell.json("lag", topic)
    assert lag["backlog"] == 0, "each was acknowledged, the last one too"
    shell.run("subscriptions", "seek", topic, "sum", "earliest")
    assert shell.run("consume", topic, "-s", "sum", "-n", "3", "-q").startswith("3 messages, 11 B, in ")


def test_a_part_of_a_batch_that_was_consumed_does_not_come_again(shell: Shell, namespace: str) -> None:
    topic = f"persistent://{namespace}/batch"
    shell.run("produce", topic, "-m", "one", "-m", "two", "-m", "three")
    for value in ("one", "two", "three"):
        assert shell.run("consume", topic, "-s", "s", "-n", "1").endswith(f"  {value}\n")
    (lag,) = shell.json("lag", topic)
    assert lag["backlog"] == 0


def test_partitions_are_looked_up_unloaded_and_measured_one_by_one(shell: Shell, namespace: str) -> None:
    topic = f"persistent://{namespace}/parts"
    shell.run("topics", "create", topic, "--partitions", "2")
    shell.run("subscriptions", "create", topic, "s")
    names = [f"{topic}-partition-0", f"{topic}-partition-1"]
    assert list(shell.json("topics", "lookup", topic)) == names
    assert shell.run("topics", "unload", topic) == "unloaded\n"
    assert sorted(one["topic"] for one in shell.json("lag", topic, "--partitions")) == names
    assert [one["topic"] for one in shell.json("lag", topic)] == [topic]
    assert {"topic": topic, "partitions": 2} in shell.json("topics", "list", namespace)


def test_a_topic_moves_to_the_broker_that_is_named(shell: Shell, namespace: str) -> None:
    topic = f"persistent://{namespace}/moved"
    shell.run("produce", topic, "-m", "before")
    brokers = [row["broker"] for row in shell.json("brokers", "list")]
    owner = shell.json("topics", "stats", topic)["ownerBroker"]
    (target,) = [broker for broker in brokers if broker != owner][:1]
    shell.run("topics", "move", topic, target, "--yes")
    assert shell.json("topics", "stats", topic)["ownerBroker"] == target
    shell.run("produce", topic, "-m", "after")
    assert [line.split("  ")[-1] for line in shell.run("read", topic).splitlines()] == ["before", "after"]


def test_messages_are_shown_by_conditions_and_topics_deleted_by_an_expression(shell: Shell, namespace: str) -> None:
    topic = f"persistent://{namespace}/visits-1"
    shell.run("produce", topic, "-m", "ann=in", "-m", "bob=in", "-m", "ann=out", "-K", "=", "-p", "door=north")

    def shown(*conditions: str) -> list[str]:
        options = [option for condition in conditions for option in ("--where", condition)]
        return [line.split("  ")[-1] for line in shell.run("tail", topic, *options).splitlines()]

    assert shown("key=ann") == ["in", "out"]
    assert shown("key=ann", "value~^o") == ["out"]
    assert shown("door=south") == []
    assert shell.json("topics", "clients", topic) == []
    shell.run("topics", "delete", "--pattern", f"{namespace}/visits-.*", "--yes")
    assert topic not in [one["topic"] for one in shell.json("topics", "list", namespace)]


def test_tenants_namespaces_and_policies_are_kept(shell: Shell) -> None:
    shell.run("tenants", "create", "shop")
    assert "shop" in shell.json("tenants", "list")
    assert shell.json("tenants", "show", "shop")["allowedClusters"]
    shell.run("namespaces", "create", "shop/orders", "--bundles", "2")
    assert shell.run("namespaces", "list", "shop") == "shop/orders\n"
    shell.run("namespaces", "set-retention", "shop/orders", "--minutes", "60", "--megabytes", "100")
    shell.run("namespaces", "set-policy", "shop/orders", "deduplication", "true")
    assert json.loads(shell.run("namespaces", "get-policy", "shop/orders", "deduplication")) is True
    shell.run("namespaces", "set-policy", "shop/orders", "compactionThreshold", "1000000")
    shell.run("topics", "create", "shop/orders/t")
    for name, value in (("maxConsumers", "7"), ("messageTTL", "60"), ("schemaCompatibilityStrategy", '"FORWARD"')):
        shell.run("topics", "set-policy", "shop/orders/t", name, value)
        assert json.loads(shell.run("topics", "get-policy", "shop/orders/t", name)) == json.loads(value)
    assert shell.run("topics", "set-policy", "shop/orders/t", "maxConsumers", "null") == "removed\n"
    assert json.loads(shell.run("topics", "get-policy", "shop/orders/t", "maxConsumers", "--applied")) == 0
    applied = shell.run("topics", "get-policy", "shop/orders/t", "compactionThreshold", "--applied")
    assert json.loads(applied) == 1000000
    shell.run("topics", "delete", "shop/orders/t", "--yes")
    shown = shell.json("namespaces", "show", "shop/orders")
    assert shown["retention_policies"] == {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}
    shell.run("namespaces", "unload", "shop/orders")
    shell.run("namespaces", "delete", "shop/orders", "--yes")
    shell.run("tenants", "delete", "shop", "--yes")
    assert "shop" not in shell.json("tenants", "list")


def test_schemas_go_up_and_are_shown(shell: Shell, namespace: str, tmp_path: Path) -> None:
    record = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(record))
    topic = f"persistent://{namespace}/with-schema"
    shell.run("topics", "create", topic)
    assert shell.run("schemas", "upload", topic, str(file)) == "version 0\n"
    assert shell.json("schemas", "show", topic)["type"] == "AVRO"
    assert json.loads(shell.run("schemas", "show", topic).partition("\n")[2]) == record
    file.write_text(json.dumps({**record, "fields": [{"name": "id", "type": "string"}]}))
    assert "not compatible" in shell.run("schemas", "upload", topic, str(file), "--check", code=2)
    assert len(shell.json("schemas", "list", topic)) == 1


def test_the_processes_of_a_cluster_are_shown(shell: Shell) -> None:
    folder = ("--directory", str(shell.cluster.directory))
    assert "bookie-3" in shell.run("cluster", "status", *folder)
    found = shell.json("cluster", "status", *folder)
    assert found["service_url"] == shell.cluster.service_url
    assert [one["name"] for one in found["processes"] if one["running"]] == [
        "zookeeper", *(f"bookie-{number}" for number in range(1, 6)), "broker-1", "broker-2",
    ]  # fmt: skip


def test_brokers_tell_how_they_are(shell: Shell) -> None:
    brokers = shell.json("brokers", "list")
    assert len(brokers) == 2
    (leader,) = [one["broker"] for one in brokers if one["leader"]]
    assert f"{leader}  leader" in shell.run("brokers", "list")
    assert shell.run("brokers", "health") == "ok\n"
    assert shell.json("brokers", "health") == {"healthy": True, "reason": ""}
    assert shell.json("brokers", "config", "EnsembleSize") == {"managedLedgerDefaultEnsembleSize": "2"}
    assert "pulsar_" in shell.run("brokers", "metrics")


def test_a_ledger_is_shown_entry_by_entry_with_every_copy(shell: Shell, namespace: str, written: str) -> None:
    ledger_id = shell.json("topics", "ledgers", written)["ledgers"][-1]["ledgerId"]
    assert str(ledger_id) in shell.run("topics", "ledgers", written)
    found = shell.json("ledgers", "show", str(ledger_id), "--all")
    assert found["state"] == "OPEN"
    assert found["custom"]["pulsar/managed-ledger"] == f"{namespace}/persistent/orders"
    assert [entry["entry_id"] for entry in found["entries"]] == list(range(found["last_entry_there"] + 1))
    for entry in found["entries"]:
        assert [copy["verdict"] for copy in entry["copies"]] == ["good", "good"] + ["good"] * (
            found["write_quorum"] - 2
        )
        assert entry["last_add_confirmed"] < entry["entry_id"]
    text = shell.run("ledgers", "show", str(ledger_id))
    assert found["ctime_ms"], "from the store where the record does not say"
    assert re.search(r"^0 +-1 .* good .*order 0", text, re.M)
    payload = shell.run("ledgers", "read", str(ledger_id), "0", errors="replace")
    assert "order 0" in payload
    assert str(ledger_id) in {str(one["ledger_id"]) for one in shell.json("ledgers", "list")}
    # These commands have not disturbed the writer.
    assert shell.run("produce", written, "-m", "one more") == "1 message acknowledged\n"


def test_ledgers_that_are_not_there_are_named(shell: Shell) -> None:
    for command in (("show", "999999"), ("read", "999999", "0")):
        assert "ledger 999999" in shell.refused("ledgers", *command)


def test_lines_of_json_become_values_of_the_schema_and_back(shell: Shell, namespace: str, tmp_path: Path) -> None:
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
        topic = f"persistent://{namespace}/values-{kind.lower()}"
        shell.run("topics", "create", topic)
        shell.run("schemas", "upload", topic, str(file), "--type", kind)
        assert shell.run("produce", topic, "--schema", "-f", "-", input=lines) == "2 messages acknowledged\n"
        read = [json.loads(line) for line in shell.run("read", topic, "--json").splitlines()]
        assert [one["value"] for one in read] == values
        assert '{"id": 1, "note": "first"}' in shell.run("read", topic)
        shell.run("produce", topic, "--schema", "-m", '{"id": "one"}', code=2)
    raw = shell.run("tail", f"persistent://{namespace}/values-avro", "--raw", "-n", "1")
    assert "note" not in raw


def test_writes_stop_at_all_brokers_and_a_topic_over_both_is_copied(shell: Shell, tmp_path: Path) -> None:
    namespace, other = (new_namespace(shell.cluster.admin_urls, name) for name in ("still", "copy"))
    topic, path = f"persistent://{namespace}/parts", str(tmp_path / "parts")
    shell.run("topics", "create", topic, "--partitions", "8")
    lines = "\n".join(f"{number}=order {number}" for number in range(64))
    shell.run("produce", topic, "-K", "=", "-f", "-", input=lines)
    admin = AdminClient(shell.cluster.admin_urls[0])
    owners = {admin.owner_url(name): name for name in admin.partition_names(topic)}
    assert len(owners) == 2
    assert shell.run("namespaces", "stop-writes", namespace) == "writes are stopped\n"

    def are_stopped() -> bool:
        """At both brokers: the policy is known to each a moment later."""
        for url, name in owners.items():
            parts = urlsplit(url)
            try:
                with RawProducer((parts.hostname or "", parts.port or 0), name, "late"):
                    return False
            except AssertionError as refusal:
                if "allow-writes" not in str(refusal):
                    raise
        return True

    until(are_stopped, "each broker refuses producers")
    assert [one for one in shell.findings() if "writes are stopped" in one["text"] and namespace in one["where"]]
    shell.run("topics", "export", topic, path)
    shell.run("topics", "import", path, f"persistent://{other}/parts")
    messages = [sorted(line.split("  ", 1)[1] for line in shell.run("read", f"persistent://{place}/parts").splitlines())
                for place in (namespace, other)]  # fmt: skip
    assert messages[0] == messages[1]
    assert len(messages[0]) == 64
    shell.run("namespaces", "allow-writes", namespace)
    for name in owners.values():
        assert shell.run("produce", name, "-m", "again").startswith("1 message acknowledged")
