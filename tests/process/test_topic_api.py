"""The topic API at a real cluster: brokers are killed under load, and partitions and topics come."""

import threading

import pytest

import magnetar
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster
from tests.support.processes import other_broker, owner_of, prepare, until
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

BATCH = 20


class Sending(threading.Thread):
    """A named producer that counts up, some numbers in each call, until it is stopped."""

    def __init__(self, client: magnetar.Client, topic: str) -> None:
        super().__init__(daemon=True)
        self.producer = client.producer(topic, name="counter", send_timeout_s=60)
        self.acknowledged = 0
        self.failure: BaseException | None = None
        self._stop_wanted = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop_wanted.is_set():
                first = self.acknowledged
                self.producer.send_many([b"%d" % number for number in range(first, first + BATCH)])
                self.acknowledged = first + BATCH
        except BaseException as error:
            self.failure = error

    def wait_for(self, more: int) -> None:
        """Until *more* messages are acknowledged."""
        wanted = self.acknowledged + more
        until(lambda: self.acknowledged >= wanted or self.failure, f"{more} more messages are acknowledged", 60)
        assert self.failure is None, self.failure

    def finish(self) -> None:
        self._stop_wanted.set()
        self.join()
        assert self.failure is None, self.failure


class Taking(threading.Thread):
    """A consumer that acknowledges what it takes, and keeps the numbers in the order in which they came first."""

    def __init__(self, client: magnetar.Client, topic: str) -> None:
        super().__init__(daemon=True)
        self.consumer = client.consumer(topic, "s", from_earliest=True)
        self.taken: dict[int, None] = {}

    def run(self) -> None:
        for message in self.consumer:
            self.taken.setdefault(int(message.payload))
            self.consumer.ack(message)


@pytest.mark.long("the official client goes through the same in test_cluster")
def test_each_broker_in_turn_is_killed_and_nothing_is_lost_or_stored_twice(
    cluster: Cluster, namespace: str, topic: str
) -> None:
    prepare(AdminClient(cluster.admin_urls), namespace)
    with magnetar.Client(cluster.grpc_addresses, operation_timeout_s=60) as client:
        sending, taking = Sending(client, topic), Taking(client, topic)
        sending.start()
        taking.start()
        sending.wait_for(1_000)
        first = owner_of(cluster, topic)
        cluster.kill(first)
        sending.wait_for(1_000)
        second = owner_of(cluster, topic)
        assert second == other_broker(cluster, first)
        cluster.start(first)
        cluster.kill(second)
        sending.wait_for(1_000)
        assert owner_of(cluster, topic) == first
        sending.finish()
        everything = list(range(sending.acknowledged))
        until(lambda: len(taking.taken) >= len(everything), "the consumer has taken everything", 60)
        assert list(taking.taken) == everything
        with client.reader(topic) as reader:
            stored = []
            while reader.has_more():
                stored += [int(one.payload) for one in reader.receive_batch(1_000, 60)]
        assert stored == everything


def test_open_clients_follow_partitions_and_topics_that_come(cluster: Cluster, namespace: str) -> None:
    """Brokers learn of both by watches of ZooKeeper, whichever of them was asked for the change."""
    topic = f"persistent://{namespace}/growing"
    with magnetar.Client(cluster.grpc_addresses, operation_timeout_s=60) as client:
        client.topics.create(topic, partitions=1)
        consumer = client.consumer(topic, "s", from_earliest=True)
        of_pattern = client.consumer(subscription="s", pattern=f"{namespace}/new-.*", type="shared")
        producer = client.producer(topic)
        producer.send(b"0")
        for admin_url in cluster.admin_urls:  # from 1 to 3, and to 5
            admin = AdminClient([admin_url])
            count = admin.partitions(topic) + 2
            admin.call("POST", f"/admin/v2/{admin.path_of(topic)}/partitions", count)
            client.topics.create(f"persistent://{namespace}/new-{count}")
        sent, used = 1, {0}

        def sends_to_all() -> bool:
            nonlocal sent
            messages = [magnetar.Outgoing(b"%d" % number, key=str(number)) for number in range(sent, sent + 20)]
            used.update(id_.partition for id_ in producer.send_many(messages))
            sent += len(messages)
            return len(used) == 5

        until(sends_to_all, "the producer uses the new partitions", each_s=0.2)
        messages = [consumer.receive(timeout_s=60) for _ in range(sent)]
        assert sorted(int(message.payload) for message in messages) == list(range(sent)), "each came once"
        assert {message.id.partition for message in messages} == set(range(5))
        for count in (3, 5):
            client.producer(f"persistent://{namespace}/new-{count}").send(b"first")
        news = [of_pattern.receive(timeout_s=60) for _ in range(2)]
        assert {message.topic for message in news} == {f"persistent://{namespace}/new-{count}" for count in (3, 5)}
        assert {message.payload for message in news} == {b"first"}
