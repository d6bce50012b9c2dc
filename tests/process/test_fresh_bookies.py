"""Bookies are drained, removed, and come back with empty disks under their names: nothing acknowledged is lost."""

import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any

import pulsar
import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster
from tests.support.processes import bookies_of, until
from tests.support.shell import bookies
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

TIMEOUT_MS = 20_000


@pytest.fixture
def client(cluster: Cluster) -> Iterator[pulsar.Client]:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(cluster.directory / "client.log"))
    made = pulsar.Client(cluster.service_url, logger=quiet)
    yield made
    made.close()


def exchanged(cluster: Cluster, name: str) -> None:
    """The product's own way to a bookie with other disks."""
    ask = partial(bookies, cluster.metadata_url)
    member = cluster.member(name)
    bookie_id = f"127.0.0.1:{member.port}"
    code, told = ask("drain", bookie_id, "--why", "other disks", "--wait", "--timeout", "60")
    assert (code, told["state"], told["reasons"]) == (0, "drained", [])
    cluster.kill(name)
    assert ask("remove", bookie_id, "--yes") == (0, {"bookie": bookie_id, "removed": True})
    for directory in ("journal", "ledgers"):
        shutil.rmtree(cluster.directory / name / directory)
    cluster.start(name)
    until(lambda: bookie_id in writable(cluster), f"{bookie_id} takes entries")


def writable(cluster: Cluster) -> list[str]:
    _, listed = bookies(cluster.metadata_url, "list")
    return [one["bookie_id"] for one in listed if one["state"] == "writable"]


def received(client: pulsar.Client, topic: str) -> list[bytes]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: list[bytes] = []
    while reader.has_message_available():
        found.append(reader.read_next(TIMEOUT_MS).data())
    reader.close()
    return found


@pytest.mark.long("two bookies are drained, removed and started; writers, drains and owners each have their tests")
@pytest.mark.parametrize("before", [0, 1])
def test_what_is_published_to_an_idle_topic_stays_when_its_bookies_were_exchanged_one_after_the_other(
    cluster: Cluster, namespace: str, topic: str, client: pulsar.Client, before: int
) -> None:
    admin = AdminClient(cluster.admin_urls)
    persistence: dict[str, Any] = {
        "bookkeeperEnsemble": 2,
        "bookkeeperWriteQuorum": 2,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }
    admin.call("POST", f"/admin/v2/namespaces/{namespace}/persistence", persistence)
    admin.set_retention(namespace, minutes=-1, megabytes=-1)
    producer = client.create_producer(topic, batching_enabled=False)
    wanted = [b"before %d" % number for number in range(before)]
    for payload in wanted:
        producer.send(payload)
    for name in bookies_of(cluster, topic):
        exchanged(cluster, name)
    for number in range(3):
        producer.send(b"after %d" % number)
        wanted.append(b"after %d" % number)
    admin.call("PUT", f"/admin/v2/namespaces/{namespace}/unload")
    assert received(client, topic) == wanted
    producer.send(b"last")
    assert received(client, topic) == [*wanted, b"last"]
