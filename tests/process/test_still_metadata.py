"""ZooKeeper stands still for longer than sessions last: what is open goes on."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pulsar
import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import SESSION_MS, Cluster
from tests.support.processes import QUIET, owner_of, until
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

TIMEOUT_MS = 20_000


@contextmanager
def standing_still(cluster: Cluster) -> Iterator[None]:
    pid = cluster.member("zookeeper").pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_open_topics_go_on_and_stay_where_they_are(cluster: Cluster, namespace: str, topic: str) -> None:
    admin = AdminClient(cluster.admin_urls)
    client = pulsar.Client(cluster.service_url, logger=QUIET, operation_timeout_seconds=60)
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=5_000)
    consumer = client.subscribe(topic, "s")
    sent = 0

    def pass_one() -> None:
        nonlocal sent
        producer.send(b"%d" % sent)
        message = consumer.receive(TIMEOUT_MS)
        assert message.data() == b"%d" % sent
        consumer.acknowledge(message)
        sent += 1

    def stats() -> dict[str, Any]:
        found: dict[str, Any] = admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/stats")
        return found

    for _ in range(5):
        pass_one()
    owner, connected = owner_of(cluster, topic), stats()["publishers"][0]["connectedSince"]
    with standing_still(cluster):
        ends_s = time.monotonic() + 2.5 * SESSION_MS / 1000
        before = sent
        while time.monotonic() < ends_s:
            pass_one()
            time.sleep(0.02)
        assert sent - before > 20
    until(lambda: len(admin.call("GET", "/admin/v2/brokers")) == len(cluster.members("broker")), "brokers are listed")
    for _ in range(5):
        pass_one()
    assert owner_of(cluster, topic) == owner
    assert stats()["publishers"][0]["connectedSince"] == connected
    client.close()
