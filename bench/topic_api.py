"""The topic API beside the official client, on one standalone: `python -m bench.topic_api`.

Messages of 100 bytes, one client process at a time, both ways in turn; the median of the rounds.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import magnetar

SIZE = 100
CHUNK = 5_000


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
def standalone(folder: str) -> Iterator[tuple[str, str]]:
    """(gRPC address, service URL) of a standalone on free ports."""
    ports = ["--port", "0", "--web-port", "0", "--bookie-port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "magnetar", "standalone", "--data", folder, *ports],
        stdout=subprocess.PIPE,
        text=True,
    )
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


def run(module: str, *arguments: str) -> float:
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["rate"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--do", choices=["publish", "consume"], help="one measurement, as one JSON line")
    parser.add_argument("--at", nargs=2, metavar=("ADDRESS", "TOPIC"))
    chosen = parser.parse_args()
    count = max(chosen.messages // CHUNK, 1) * CHUNK
    if chosen.do:
        work = publish if chosen.do == "publish" else consume
        address, topic = chosen.at
        print(json.dumps({"rate": work(address, topic, count)}))
        return
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, standalone(folder) as (grpc, service):
        for number in range(chosen.rounds):
            for what in ("publish", "consume"):
                ours = run("bench.topic_api", "--do", what, "--at", grpc, f"ours-{number}", "--messages", str(count))
                rates.setdefault((what, "topic API"), []).append(ours)
                theirs = run(
                    "bench.client_load", what, service, "--topic", f"theirs-{number}",
                    "--count", str(count), "--size", str(SIZE),
                )  # fmt: skip
                rates.setdefault((what, "official client"), []).append(theirs)
    print(f"{'':10}{'client':18}{'messages/s':>12}   ({SIZE} B, median of {chosen.rounds})")
    for (what, client), found in rates.items():
        print(f"{what:10}{client:18}{statistics.median(found):>12,.0f}")


if __name__ == "__main__":
    main()
