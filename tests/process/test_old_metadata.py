"""ZooKeeper's data of an hour ago are put back under newer bookies, as people do after an accident."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.inspect.bookie_admin import BookieAdmin
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster
from tests.support.processes import cluster_of
from tests.support.shell import Shell
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.long("a cluster of its own is started three times; bookies, records, commands each have their tests"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

NAMESPACE = "public/default"
OLD, NEW = f"persistent://{NAMESPACE}/old", f"persistent://{NAMESPACE}/new"
TIMEOUT_MS = 20_000
BOOKIES, BROKERS = 3, 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("old-metadata")
    # Without auto-recovery, which reports what it misses while bookies start one after the other.
    with cluster_of(folder, bookies=BOOKIES, brokers=BROKERS, auto_recovery=False) as made:
        yield made


def publish(cluster: Cluster, topic: str, payloads: list[bytes]) -> None:
    """Into a ledger of its own."""
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(cluster.directory / "client.log"))
    client = pulsar.Client(cluster.service_url, logger=quiet)
    producer = client.create_producer(topic, producer_name=topic.rpartition("/")[2], batching_enabled=False)
    for payload in payloads:
        producer.send(payload)
    client.close()
    AdminClient(cluster.admin_urls).call("PUT", f"/admin/v2/namespaces/{NAMESPACE}/unload")


def received(cluster: Cluster, topic: str) -> list[bytes]:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(cluster.directory / "client.log"))
    client = pulsar.Client(cluster.service_url, logger=quiet)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(TIMEOUT_MS).data())
    client.close()
    return found


def some(name: str, count: int = 40) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(count)]


def admins(cluster: Cluster) -> list[BookieAdmin]:
    return [BookieAdmin(f"http://{one.address}:{one.web_port}") for one in cluster.members("bookie")]


def collect(cluster: Cluster) -> None:
    """Two rounds at each bookie: what one found deleted goes in the next."""
    shell = Shell(cluster)
    for admin in admins(cluster):
        admin.put("magnetar/flush")
        for _ in range(3):
            shell.run("bookie", "gc", "run", "--wait", "--admin-url", admin.url)


def held(cluster: Cluster) -> list[list[int]]:
    return [admin.get("magnetar/ledgers") for admin in admins(cluster)]


def put_back(cluster: Cluster, data: Path) -> None:
    """Everything ends at once; ZooKeeper comes back with older data."""
    for kind in ("broker", "bookie", "zookeeper"):
        for member in cluster.members(kind):
            cluster.kill(member.name)
    there = cluster.directory / "zookeeper" / "data"
    shutil.rmtree(there)
    shutil.copytree(data, there)
    start(cluster, "zookeeper", "bookie", "broker")


def start(cluster: Cluster, *kinds: str) -> None:
    for kind in kinds:
        for member in cluster.members(kind):
            cluster.start(member.name)


def doubts(cluster: Cluster) -> list[int]:
    return [admin.get("magnetar/ledger_doubts")["ledgers"] for admin in admins(cluster)]


def test_nothing_is_lost_and_what_was_published_since_is_saved(cluster: Cluster, tmp_path: Path) -> None:
    shell = Shell(cluster)
    AdminClient(cluster.admin_urls).set_retention(NAMESPACE, minutes=-1, megabytes=-1)
    publish(cluster, OLD, some("before"))
    recorded = {one["ledger_id"] for one in shell.json("ledgers", "list")}
    cluster.kill("zookeeper")
    shutil.copytree(cluster.directory / "zookeeper" / "data", tmp_path / "data")
    cluster.start("zookeeper")
    for part in ("since a", "since b"):
        publish(cluster, OLD, some(part))
    publish(cluster, NEW, some("new"))
    before = held(cluster)
    newest = max(map(max, before))
    put_back(cluster, tmp_path / "data")

    # Numbers are not given again, and nothing is deleted of which the metadata do not know.
    lost = [set(ids) - recorded for ids in before]
    assert doubts(cluster) == list(map(len, lost))
    assert sum(doubts(cluster)) > 0
    publish(cluster, OLD, some("after"))
    record: dict[str, Any] = AdminClient(cluster.admin_urls).call(
        "GET", f"/admin/v2/persistent/{NAMESPACE}/old/internalStats"
    )
    assert max(one["ledgerId"] for one in record["ledgers"]) > newest
    collect(cluster)
    for ids, now in zip(lost, held(cluster), strict=True):
        assert ids <= set(now)
    assert received(cluster, OLD) == some("before") + some("after")

    # It is said, and the way out works.
    findings = shell.json("doctor", code=2)
    (told,) = [one for one in findings if "the metadata is older than the ledgers" in one["text"]]
    assert "magnetar ledgers restore" in told["way_out"]
    for member in cluster.members("broker"):
        cluster.kill(member.name, signal.SIGTERM)
    strays = shell.json("ledgers", "strays")["ledgers"]
    saved = {OLD: 0, NEW: 0}
    for one in strays:
        topic = f"persistent://{NAMESPACE}/{one['producer']}"
        if topic in saved:
            shell.run("ledgers", "restore", str(one["ledger_id"]), "--topic", topic)
            saved[topic] += one["entries"]
    assert saved == {OLD: 80, NEW: 40}
    start(cluster, "broker")
    assert received(cluster, OLD) == some("before") + some("since a") + some("since b") + some("after")
    assert received(cluster, NEW) == some("new")

    # What is left is given up, and goes.
    for admin in admins(cluster):
        assert "in doubt" in shell.run("bookie", "status", "--admin-url", admin.url)
        told = shell.run("bookie", "gc", "forget-doubt", "--yes", "--admin-url", admin.url)
        assert told.endswith("ledgers are given up\n")
    assert sum(doubts(cluster)) == 0
    collect(cluster)
    assert not [one for one in shell.findings() if "older than the ledgers" in one["text"]]
    assert received(cluster, OLD) == some("before") + some("since a") + some("since b") + some("after")
