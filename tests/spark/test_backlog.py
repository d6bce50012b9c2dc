"""Option `backlogOf` beside the official client's consumers: the rows are what they have not acknowledged."""

import random
from collections.abc import Callable

import pulsar
import pytest

from magnetar.inspect.broker_admin import AdminClient
from tests.spark.conftest import Load
from tests.spark.test_standalone import numbers, send_all, values_of
from tests.support.processes import Standalone, until

pytestmark = [pytest.mark.spark, pytest.mark.process]

COUNT = 600


def fill(client: pulsar.Client, admin: AdminClient, topic: str, names: list[str]) -> None:
    """Single messages and batches, in several ledgers of each partition."""
    for begin in range(0, COUNT, 200):
        send_all(client, topic, numbers(begin, 100), batching_enabled=False)
        send_all(client, topic, numbers(begin + 100, 100), batching_enabled=True, batching_max_messages=7)
        for name in names:
            admin.call("PUT", f"/admin/v2/{AdminClient.path_of(name)}/unload")


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(30_000) for _ in range(count)]


def settles(found: Callable[[], list[bytes]], expected: list[bytes]) -> None:
    """The broker stores what was acknowledged a second later at most."""
    until(lambda: found() == sorted(expected), f"a backlog of {len(expected)} messages")


@pytest.mark.parametrize("partitions", [0, 3])
def test_the_backlog_is_everything_but_what_was_acknowledged(
    client: pulsar.Client, standalone: Standalone, load: Load, partitions: int
) -> None:
    admin = AdminClient([standalone.admin_url])
    topic = f"backlog-{partitions}"
    draw = random.Random(partitions)
    with_indexes = {"initial_position": pulsar.InitialPosition.Earliest, "batch_index_ack_enabled": True}
    if partitions:
        admin.create_topic(topic, partitions)
    types = {"shared": pulsar.ConsumerType.Shared, "exclusive": pulsar.ConsumerType.Exclusive}
    for name, kind in types.items():
        client.subscribe(topic, name, consumer_type=kind, **with_indexes).close()
    names = [f"{topic}-partition-{number}" for number in range(partitions)] or [topic]
    fill(client, admin, topic, names)
    shared, exclusive = [
        client.subscribe(topic, name, consumer_type=kind, **with_indexes) for name, kind in types.items()
    ]

    def backlog(subscription: str) -> list[bytes]:
        return values_of(load(topic, backlogOf=subscription, columns="value"))

    assert backlog("shared") == sorted(numbers(0, COUNT)), "nothing was acknowledged yet"
    left = {bytes(message.data()): message for message in receive(shared, COUNT)}
    for value in draw.sample(sorted(left), 350):
        shared.acknowledge(left.pop(value))
    settles(lambda: backlog("shared"), list(left))
    assert backlog("exclusive") == sorted(numbers(0, COUNT)), "subscriptions do not know each other"

    messages = receive(exclusive, COUNT)
    kept = {bytes(message.data()): message for message in messages}
    if not partitions:
        exclusive.acknowledge_cumulative(messages[239])
        for message in messages[:240]:
            del kept[bytes(message.data())]
    for value in draw.sample(sorted(kept), 100):
        exclusive.acknowledge(kept.pop(value))
    settles(lambda: backlog("exclusive"), list(kept))

    # Reading has disturbed nobody: consumers go on, and the broker has the same backlog as before.
    for value in draw.sample(sorted(left), 50):
        shared.acknowledge(left.pop(value))
    shared.close()
    exclusive.close()
    for name in names:
        admin.call("PUT", f"/admin/v2/{AdminClient.path_of(name)}/unload")
    assert backlog("shared") == sorted(left), "what a broker knows is stored when it gives a topic away"
    assert backlog("exclusive") == sorted(kept)
    again = client.subscribe(topic, "shared", consumer_type=pulsar.ConsumerType.Shared, **with_indexes)
    assert sorted(bytes(message.data()) for message in receive(again, len(left))) == sorted(left)
    again.close()


def test_a_subscription_that_is_not_there_is_named_with_those_that_are(client: pulsar.Client, load: Load) -> None:
    client.subscribe("backlog-none", "here").close()
    with pytest.raises(Exception, match=r"default/backlog-none has no subscription there; there are here"):
        load("backlog-none", backlogOf="there").count()
