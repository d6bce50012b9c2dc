"""Tasks of Spark that are repeated: each message once, through either broker, also when the other has taken over."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from connectors.spark.options.write import parse_write_options
from connectors.spark.write.exactly_once import Attempt, ExactlyOnceSender
from connectors.spark.write.message import Outgoing
from connectors.spark.write.sending import Brokers
from tests.support.mixed_cluster import Brand, MixedCluster, Server, cluster_with
from tests.support.processes import client_of, received

Cell = Callable[[str, str], None]

TOPIC = "persistent://public/default/once"
ROWS = 700


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    with cluster_with(tmp_path / "cluster", "ours", "apache", "ours") as made:
        yield made


def call(method: str, url: str, body: bytes) -> None:
    with urlopen(Request(url, data=body, method=method, headers={"Content-Type": "application/json"})) as answer:
        assert answer.status == 204


def rows(batch: int) -> list[Outgoing]:
    return [
        Outgoing(None, b"%d" % (batch * ROWS + row), f"key-{row % 7}" if row % 2 else None, None, None)
        for row in range(ROWS)
    ]


def attempt(broker: Server, batch: int, sent: int | None = None) -> int:
    """A task that is killed after *sent* rows; None: it ends. Returns how many were sent twice, as it knows."""
    options = parse_write_options({
        "service.url": broker.service_url, "topic": TOPIC, "deduplication": "true",
        "pulsar.producer.batchingMaxMessages": "50", "pulsar.producer.compressionType": "LZ4",
    })  # fmt: skip
    with (
        closing(Brokers(options, None)) as brokers,
        closing(ExactlyOnceSender(options, brokers, Attempt("query", batch, 0))) as sender,
    ):
        for message in rows(batch)[:sent]:
            sender.send(message)
        return sender.finish() if sent is None else 0


def stored(broker: Server) -> list[int]:
    with client_of(broker.service_url) as client:
        return [int(message.data()) for message in received(client, TOPIC)]


@pytest.mark.parametrize(("first", "second"), [("apache", "ours"), ("ours", "apache")])
def test_a_task_that_is_repeated(cluster: MixedCluster, cell: Cell, first: Brand, second: Brand) -> None:
    names = {"ours": "our broker", "apache": "Apache's broker"}
    cell(f"Spark's tasks begun at {names[first]}, repeated there and at {names[second]}", "both brands of bookies")
    broker = cluster.add("broker", first)
    call("POST", f"{broker.admin_url}/admin/v2/namespaces/public/default/deduplication", b"true")
    call("PUT", f"{broker.admin_url}/admin/v2/persistent/public/default/once/partitions", b"2")
    assert attempt(broker, 0) == 0
    for sent in (3, 260, 699):
        attempt(broker, 1, sent)
    assert attempt(broker, 1) == 0
    attempt(broker, 2, 333)
    broker.stop()

    other = cluster.add("broker", second)
    attempt(other, 2, 10)
    assert attempt(other, 2) == 0
    assert attempt(other, 3) == 0
    found = stored(other)
    assert sorted(found) == list(range(4 * ROWS))
