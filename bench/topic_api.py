"""The topic API beside the official client, on one standalone: `python -m bench topic_api`.

Messages of 100 bytes, one client process at a time, both clients in turn; the median of the rounds.
`python -m bench.topic_api publish ADDRESS TOPIC` is one measurement, as a line of JSON.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import magnetar

SIZE = 100
CHUNK = 5_000
COUNT = 200_000


def publish(address: str, topic: str, count: int) -> float:
    """Messages a second, from the first send to the last acknowledgement."""
    payload = bytes(SIZE)
    with magnetar.Client(address) as client:
        producer = client.producer(topic)
        producer.send(payload)
        messages = [payload] * CHUNK
        began = time.perf_counter()
        for _ in range(count // CHUNK):
            producer.send_many(messages)
        return count / (time.perf_counter() - began)


def consume(address: str, topic: str, count: int) -> float:
    """Messages a second of a backlog, each taken by iteration and acknowledged."""
    with (
        magnetar.Client(address) as client,
        client.consumer(topic, "bench", from_earliest=True, queue_size=5000) as consumer,
    ):
        consumer.ack(consumer.receive(10))
        began = time.perf_counter()
        for taken, message in enumerate(consumer, start=2):
            consumer.ack(message)
            if taken == count:
                break
        consumer.flush()
        return (count - 1) / (time.perf_counter() - began)


@contextmanager
def standalone() -> Iterator[tuple[str, str]]:
    """(gRPC address, service URL) of a standalone on free ports."""
    ports = ["--port", "0", "--web-port", "0", "--bookie-port", "0"]
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "magnetar", "standalone", "--data", folder, *ports],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            grpc, service = re.search(r"gRPC (\S+),", said), re.search(r"(pulsar://[^,]+),", said)
            assert grpc is not None, said
            assert service is not None, said
            yield grpc[1], service[1]
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def rows(run_json: Callable[..., dict[str, Any]], rounds: int) -> list[tuple[str, str]]:
    """The table's rows; *run_json* runs a module with arguments and gives its JSON line."""
    found = []
    rates: dict[tuple[str, str], list[float]] = {}
    with standalone() as (grpc, service):
        for number in range(rounds):
            for what in ("publish", "consume"):
                ours = run_json("bench.topic_api", what, grpc, f"ours-{number}", "--count", str(COUNT))
                theirs = run_json("bench.client_load", what, service, "--topic", f"theirs-{number}",
                                  "--count", str(COUNT), "--size", str(SIZE))  # fmt: skip
                rates.setdefault((what, "ours"), []).append(ours["rate"])
                rates.setdefault((what, "theirs"), []).append(theirs["rate"])
    for what in ("publish", "consume"):
        ours_, theirs_ = rates[what, "ours"], rates[what, "theirs"]
        found.append(
            (
                f"topic API, Python client, {what} {SIZE} B, 1/1/1",
                f"{statistics.median(ours_):,.0f}/s ({min(ours_):,.0f} to {max(ours_):,.0f}); the official client "
                f"{statistics.median(theirs_):,.0f}/s ({min(theirs_):,.0f} to {max(theirs_):,.0f})",
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["publish", "consume"])
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--count", type=int, default=COUNT)
    chosen = parser.parse_args()
    work = publish if chosen.what == "publish" else consume
    count = max(chosen.count // CHUNK, 1) * CHUNK
    print(json.dumps({"rate": work(chosen.address, chosen.topic, count)}))


if __name__ == "__main__":
    main()
