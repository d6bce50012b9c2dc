"""The topic API while brokers of a real cluster are killed under load."""

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
