"""Processes of a real cluster are killed, paused and started again under load.

What must hold in every case: what was acknowledged is there afterwards, exactly once, in order for each key.
"""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pulsar
import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import SESSION_MS, Cluster
from tests.support.processes import (
    PATIENCE_S,
    Load,
    bookies_of,
    client_of,
    cluster_of,
    other_broker,
    owner_of,
    prepare,
    read_all,
    until,
)
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

PARTITIONS = 2


def make_topic(cluster: Cluster, topic: str) -> None:
    admin = AdminClient(cluster.admin_urls)
    prepare(admin, namespace_of(topic))
    admin.create_topic(topic, PARTITIONS)


def namespace_of(topic: str) -> str:
    return topic.removeprefix("persistent://").rpartition("/")[0]


def magnetar(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as a person runs it."""
    return subprocess.run([sys.executable, "-m", "magnetar", *arguments], capture_output=True, text=True, check=False)


def test_each_broker_in_turn_is_killed_while_it_is_published_to(cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    with Load(cluster.service_url, topic) as load:
        load.wait_for(3_000)
        first = owner_of(cluster, f"{topic}-partition-0")
        with load.rush():
            cluster.kill(first)
        load.wait_for(5_000)  # more than the window holds: both partitions are served again
        assert owner_of(cluster, f"{topic}-partition-0") == other_broker(cluster, first)
        cluster.start(first)
        with load.rush():
            cluster.kill(other_broker(cluster, first))
        load.wait_for(5_000)
        load.finish()
        load.check()
        assert owner_of(cluster, f"{topic}-partition-0") == first


def test_two_bookies_are_killed_one_after_the_other(cluster: Cluster, topic: str) -> None:
    for name in ("bookie-4", "bookie-5"):
        cluster.kill(name, signal.SIGTERM)
    make_topic(cluster, topic)
    with Load(cluster.service_url, topic) as load:
        load.wait_for(3_000)
        partition = f"{topic}-partition-0"
        first, second = bookies_of(cluster, partition)
        with load.rush():
            cluster.kill(first)
        load.wait_for(4_000)
        ensemble = bookies_of(cluster, partition)
        assert first not in ensemble
        cluster.start(first)
        victim = second if second in ensemble else ensemble[0]
        with load.rush():
            cluster.kill(victim)
        load.wait_for(4_000)
        assert first in bookies_of(cluster, partition)  # only two are left
        load.finish()
        load.check()


@pytest.mark.long("two loads are written, read and compared")
def test_zookeeper_is_killed_and_comes_back_at_once(cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    admin = AdminClient(cluster.admin_urls)
    with Load(cluster.service_url, topic) as load:
        with load.rush():
            cluster.kill("zookeeper")
        cluster.start("zookeeper")
        load.wait_for(3_000)
        load.finish()
        load.check()
    admin.create_topic(f"{topic}-after", 0)
    with Load(cluster.service_url, f"{topic}-after", name="after") as after:
        after.wait_for(500)
        after.finish()
        after.check()
    assert len(admin.call("GET", "/admin/v2/brokers")) == 2


def test_without_zookeeper_what_is_open_goes_on(cluster: Cluster, topic: str) -> None:
    """Where it stands still: `test_still_metadata.py`."""
    make_topic(cluster, topic)
    with Load(cluster.service_url, topic) as load:
        load.wait_for(2_000)
        cluster.kill("zookeeper")
        time.sleep(SESSION_MS / 1000)
        load.wait_for(2_000)
        cluster.start("zookeeper")
        load.wait_for(3_000)
        load.finish()
        load.check()
    admin = AdminClient(cluster.admin_urls)
    until(lambda: len(admin.call("GET", "/admin/v2/brokers")) == 2, "both brokers are registered again")
    admin.create_topic(f"{topic}-after", 0)
    with Load(cluster.service_url, f"{topic}-after", name="after") as after:
        after.wait_for(500)
        after.finish()
        after.check()


@pytest.mark.long("a cluster of its own is started twice")
def test_all_brokers_and_bookies_are_killed_at_once(tmp_path: Path) -> None:
    directory, topic = tmp_path / "cluster", "persistent://public/default/load"
    with cluster_of(directory) as cluster:
        make_topic(cluster, topic)
        with Load(cluster.service_url, topic) as load:
            load.wait_for(4_000)
            killed = [*cluster.members("broker"), *cluster.members("bookie")]
            with load.rush():
                for member in killed:
                    os.kill(member.pid, signal.SIGKILL)
            until(lambda: not any(cluster.is_running(member.name) for member in killed), "they are gone")
            assert magnetar("cluster", "status", "--directory", str(directory)).returncode == 2
            up = magnetar("cluster", "up", "--directory", str(directory))
            assert up.returncode == 0, up.stderr
            load.wait_for(4_000)
            load.finish()
            load.check()
        status = magnetar("cluster", "status", "--directory", str(directory))
        assert status.returncode == 0
        assert status.stdout.count("running") == 6
        assert f"topic API {','.join(cluster.grpc_addresses)}" in status.stdout
        assert magnetar("cluster", "down", "--directory", str(directory)).returncode == 0
        now = Cluster(directory)
        assert not any(now.is_running(member.name) for member in now.state.members)


@pytest.mark.long("a session ends, and two loads are written, read and compared")
def test_a_broker_that_slept_through_its_session_acknowledges_nothing_that_is_lost(
    cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    partition = f"{topic}-partition-0"
    with Load(cluster.service_url, partition) as load:
        load.wait_for(3_000)
        sleeper = owner_of(cluster, partition)
        with load.rush():
            cluster.kill(sleeper, signal.SIGSTOP)
        other = other_broker(cluster, sleeper)
        until(lambda: owner_of(cluster, partition, ask=other) == other, "the other broker takes over")
        url = f"pulsar://127.0.0.1:{cluster.member(other).port}"
        with Load(url, partition, name="second", first=1_000_000) as second:
            second.wait_for(2_000)
            cluster.kill(sleeper, signal.SIGCONT)
            second.wait_for(2_000)
            load.wait_for(3_000)
            load.finish()
            second.finish()
        stored = read_all(url, partition)
        load.check(stored=stored)
        second.check(stored=stored)


@pytest.mark.long("all bookies pause, and a broker is replaced")
def test_what_was_stored_but_never_acknowledged_is_not_stored_again(cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    partition = f"{topic}-partition-0"
    bookies = [member.name for member in cluster.members("bookie")]
    with Load(cluster.service_url, partition) as load:
        load.wait_for(3_000)
        owner = owner_of(cluster, partition)
        for name in bookies:
            cluster.kill(name, signal.SIGSTOP)
        until(lambda: load.sent - load.acknowledged == load.WINDOW, "everything waits for the bookies")
        time.sleep(0.1)  # it has gone to their sockets
        cluster.kill(owner)
        for name in bookies:
            cluster.kill(name, signal.SIGCONT)  # now they store it, and nobody listens to their answers
        load.wait_for(3_000)
        load.finish()
        load.check()
        repeated = [number for number, place in load.receipts.items() if place.ledger_id < 0]
        assert repeated, "the new owner did not find what the former had not acknowledged"


def test_large_messages_come_whole_to_consumers_that_share_them(cluster: Cluster, topic: str) -> None:
    """12 MB are three chunks, more than the queue of a consumer holds: they are refused, their topic moves, and one
    consumer leaves."""
    admin, path = AdminClient(cluster.admin_urls), f"/admin/v2/{AdminClient.path_of(topic)}"
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(cluster.service_url)) for _ in range(3)]
        consumers = [
            client.subscribe(
                topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=2, negative_ack_redelivery_delay_ms=100
            )
            for client in clients[:2]
        ]
        producers = [clients[2].create_producer(topic, chunking_enabled=True) for _ in range(2)]

        def send(number: int) -> None:
            for n in (number, number + 2):
                producers[number].send(bytes([n]) * 12_000_000)

        def taken(count: int = 4) -> dict[int, tuple[pulsar.Consumer, pulsar.Message]]:
            """So many messages, and who has them."""
            found: dict[int, tuple[pulsar.Consumer, pulsar.Message]] = {}
            end = time.monotonic() + PATIENCE_S
            while len(found) < count:
                assert time.monotonic() < end, f"only {sorted(found)} came: {admin.call('GET', f'{path}/stats')}"
                for consumer in consumers:
                    with suppress(pulsar.Timeout):
                        message = consumer.receive(50)
                        number = message.data()[0]
                        assert message.data() == bytes([number]) * 12_000_000
                        found[number] = (consumer, message)
            return found

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(send, range(2))) == [None, None]
        for consumer, message in taken().values():
            consumer.negative_acknowledge(message)
        assert {message.redelivery_count() for _, message in taken().values()} == {1}
        admin.call("PUT", f"{path}/unload")
        have = taken()
        leaving, _ = have[0]
        left = {number for number, (consumer, _) in have.items() if consumer is leaving}
        for number in have.keys() - left:
            consumer, message = have[number]
            consumer.acknowledge(message)
        consumers.remove(leaving)
        leaving.close()
        again = taken(len(left))
        assert again.keys() == left
        for consumer, message in again.values():
            consumer.acknowledge(message)
        until(
            lambda: admin.call("GET", f"{path}/stats")["subscriptions"]["s"]["msgBacklog"] == 0, "all is acknowledged"
        )
