"""The index of messages goes on when Apache's broker and ours serve a topic in turn; Java's client reads it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.mixed_cluster import Brand, MixedCluster, Server, cluster_with, compile_java
from tests.support.processes import client_of

HERE: Final = Path(__file__).parent
TOPIC: Final = "persistent://public/default/numbered"
INTERCEPTORS: Final = ",".join(
    f"org.apache.pulsar.common.intercept.Append{name}MetadataInterceptor" for name in ("BrokerTimestamp", "Index")
)
SETTINGS: Final[dict[str, Any]] = {
    "brokerEntryMetadataInterceptors": INTERCEPTORS,
    "exposingBrokerEntryMetadataToClientEnabled": "true",
    "managedLedgerMaxEntriesPerLedger": 5,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}
SINGLE: Final = 13
BATCHED: Final = 20

Cell = Callable[[str, str], None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    with cluster_with(tmp_path / "cluster", "ours", "apache", "ours") as made:
        yield made


def publish(broker: Server, name: str) -> list[str]:
    """Sends single messages, then batches; returns their texts in order."""
    texts = [f"{name}-{number}" for number in range(SINGLE + BATCHED)]
    with client_of(broker.service_url) as client:
        single = client.create_producer(TOPIC, batching_enabled=False)
        for text in texts[:SINGLE]:
            single.send(text.encode())
        batched = client.create_producer(TOPIC, batching_enabled=True, batching_max_messages=7)
        for text in texts[SINGLE:]:
            batched.send_async(text.encode(), None)
        batched.flush()
    return texts


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize(("first", "second"), [("ours", "apache"), ("apache", "ours")])
def test_the_index_goes_on_at_the_other_broker(
    cluster: MixedCluster, cell: Cell, tmp_path: Path, first: Brand, second: Brand, how: str
) -> None:
    """Over ledgers of five entries, batches, clean stops and kills, and an owner that wrote nothing."""
    cell("an index for each message, by Apache's broker and ours in turn", f"the owner {how}")
    broker = cluster.add("broker", first, **SETTINGS)
    sent = publish(broker, "0")
    for number, brand in enumerate((second, first, second), start=1):
        broker.stop() if how == "stopped" else broker.kill()
        broker = cluster.add("broker", brand, **SETTINGS)
        if number == 2:  # this one only opens the topic, and leaves a ledger without entries
            with client_of(broker.service_url) as client:
                client.create_producer(TOPIC)
        else:
            sent += publish(broker, f"{number}")
    classes = compile_java([HERE / "java" / "Indexes.java"], tmp_path / "classes")
    said = cluster.java(classes, "Indexes", broker.service_url, TOPIC).splitlines()
    assert said[-1] == "END"
    found = [line.removeprefix("MESSAGE ").split() for line in said if line.startswith("MESSAGE ")]
    assert found == [[str(index), text] for index, text in enumerate(sent)]
