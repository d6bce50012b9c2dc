"""What one broker has compacted, the other one reads and compacts again; both on bookies of both brands."""

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.mixed_cluster import Brand, MixedCluster, Server, cluster_with, http_json
from tests.support.processes import client_of, until

Cell = Callable[[str, str], None]

TIMEOUT_MS = 20_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    with cluster_with(tmp_path / "cluster", "ours", "apache", "ours") as made:
        yield made


def publish(broker: Server, topic: str, pairs: list[tuple[str, str]], *, batched: bool) -> None:
    with client_of(broker.service_url) as client:
        producer = client.create_producer(topic, batching_enabled=batched, batching_max_publish_delay_ms=20)
        for key, value in pairs:
            producer.send_async(value.encode(), None, partition_key=key)
        producer.flush()


def compact(broker: Server, topic: str) -> None:
    url = f"{broker.admin_url}/admin/v2/persistent/{topic.removeprefix('persistent://')}/compaction"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT")) as answer:
        assert answer.status == 204
    until(lambda: http_json(url)["status"] != "RUNNING", "the compaction has ended", 60.0)
    found = http_json(url)
    assert found == {"status": "SUCCESS", "lastError": ""}, found


def view(broker: Server, topic: str) -> list[tuple[str, str]]:
    """All that a reader of what was kept gets, in order; messages that were emptied are left out."""
    found = []
    with client_of(broker.service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        while reader.has_message_available():
            message = reader.read_next(TIMEOUT_MS)
            if message.data():
                found.append((message.partition_key(), message.data().decode()))
    return found


@pytest.mark.parametrize(("first", "second"), [("ours", "apache"), ("apache", "ours")])
@pytest.mark.parametrize("batched", [False, True])
def test_compacted_topics(cluster: MixedCluster, cell: Cell, first: Brand, second: Brand, batched: bool) -> None:
    names = {"ours": "our broker", "apache": "Apache's broker"}
    cell(f"compacted by {names[first]}, then by {names[second]}", "both brands of bookies")
    topic = "persistent://public/default/compacted"
    broker = cluster.add("broker", first)
    publish(broker, topic, [(f"k{key}", f"{number}") for number in range(20) for key in range(30)], batched=batched)
    publish(broker, topic, [("k7", ""), ("k8", "last")], batched=batched)
    compact(broker, topic)
    kept = {**{f"k{key}": "19" for key in range(30) if key != 7}, "k8": "last"}
    assert dict(view(broker, topic)) == kept
    order = view(broker, topic)
    broker.stop()

    other = cluster.add("broker", second)
    assert view(other, topic) == order
    publish(other, topic, [("k9", "later"), ("k10", ""), ("k30", "new")], batched=batched)
    compact(other, topic)
    kept = {**kept, "k9": "later", "k30": "new"}
    del kept["k10"]
    assert dict(view(other, topic)) == kept
    order = view(other, topic)
    other.stop()

    broker.start()
    assert view(broker, topic) == order
    publish(broker, topic, [("k1", "end")], batched=batched)
    assert dict(view(broker, topic)) == {**kept, "k1": "end"}
