"""Acknowledgements in transactions at an Apache broker that is killed; ours takes its topics over."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from tests.support.mixed_cluster import LINE, cluster_with, compile_java
from tests.support.processes import until

HERE = Path(__file__).parent
ENDED, OPEN = "persistent://public/default/ended", "persistent://public/default/open"

# In a process of its own: the first client of a process decides where the log of all of them goes.
SUBSCRIBE = """
import sys
import pulsar
client = pulsar.Client(sys.argv[1])
client.subscribe(sys.argv[2], "s", consumer_type=pulsar.ConsumerType.Shared)
"""


@pytest.mark.parametrize("in_batches", ["false", "true"])
def test_what_transactions_acknowledged_is_taken_over_or_refused(
    tmp_path: Path, cell: Callable[[str, str], None], in_batches: str
) -> None:
    """What was committed does not come again, what was aborted does; a subscription of an open one is refused."""
    cell("acknowledgements in transactions, and the takeover of their topic", "the Java client, Apache's broker, ours")
    classes = compile_java([HERE / "java" / "TransactionAcks.java"], tmp_path / "classes", line=LINE)
    with cluster_with(tmp_path / "cluster", "ours", "ours", "ours") as cluster:
        apache = cluster.add(
            "broker", "apache",
            transactionCoordinatorEnabled="true", transactionPendingAckLogBatchedWriteEnabled=in_batches,
        )  # fmt: skip
        for topic, *more in ((ENDED,), (OPEN, "open")):
            said = cluster.java(classes, "TransactionAcks", apache.service_url, topic, *more, line=LINE)
            assert said.rstrip().endswith("END"), said[-3000:]
        apache.kill()
        ours = cluster.add("broker", "ours")
        client = pulsar.Client(ours.service_url)
        try:
            subscribed = dict[str, pulsar.Consumer]()

            def subscribe() -> bool:
                try:
                    subscribed["s"] = client.subscribe(ENDED, "s", consumer_type=pulsar.ConsumerType.Shared)
                except pulsar.PulsarException:
                    return False
                return True

            until(subscribe, "our broker serves the topic", 60)
            messages = sorted(subscribed["s"].receive(10_000).data().decode() for _ in range(8))
            assert messages == [f"message {number}" for number in (1, 2, 4, 5, 6, 7, 8, 9)]
            with pytest.raises(pulsar.Timeout):
                subscribed["s"].receive(1_000)
            refused = subprocess.run(
                [sys.executable, "-c", SUBSCRIBE, ours.service_url, OPEN], capture_output=True, text=True, check=False
            )
            assert "NotAllowed" in refused.stderr, refused
            assert "which has not ended. This broker does not hear how it ends" in refused.stdout, refused
            assert client.subscribe(OPEN, "other").receive is not None
        finally:
            client.close()
