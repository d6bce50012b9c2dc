"""The official Python client as load, in a process of its own: `python -m bench.client_load publish URL …`.

Prints one JSON line.
"""

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

import pulsar

SHOWN: dict[str, Any] = {}
"""What each client shows of itself; from the command line."""


def client_of(url: str) -> Any:
    return pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"), **SHOWN)


def publish(url: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Messages a second, from the first send to the last acknowledgement."""
    client = client_of(url)
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=5000, batching_enabled=True,
        batching_max_publish_delay_ms=5,
    )  # fmt: skip
    payload = bytes(size)
    producer.send(payload)
    failed: list[str] = []

    def done(result: Any, _: Any) -> None:
        if not str(result).endswith(".Ok"):
            failed.append(str(result))

    began = time.perf_counter()
    for _ in range(count):
        producer.send_async(payload, done)
    producer.flush()
    seconds = time.perf_counter() - began
    client.close()
    assert not failed, failed[0]
    return {"rate": count / seconds}


def consume(url: str, topic: str, count: int) -> dict[str, float]:
    """Messages a second of a backlog."""
    client = client_of(url)
    consumer = client.subscribe(
        topic, "bench", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=5000
    )
    consumer.receive(timeout_millis=10_000)
    began = time.perf_counter()
    message = None
    for _ in range(count - 1):
        message = consumer.receive(timeout_millis=10_000)
    seconds = time.perf_counter() - began
    if message is not None:
        consumer.acknowledge_cumulative(message)
    client.close()
    return {"rate": (count - 1) / seconds}


def latency(url: str, topic: str, rate: int, seconds: float, size: int) -> dict[str, float]:
    """Milliseconds from send to acknowledgement at a fixed rate."""
    client = client_of(url)
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=5000, batching_enabled=True,
        batching_max_publish_delay_ms=1,
    )  # fmt: skip
    payload = bytes(size)
    producer.send(payload)
    taken: list[float] = []

    def send() -> None:
        at = time.perf_counter()
        producer.send_async(payload, lambda result, _: taken.append((time.perf_counter() - at) * 1000))

    began = time.perf_counter()
    total = int(rate * seconds)
    for number in range(total):
        wait = began + number / rate - time.perf_counter()
        if wait > 0.001:
            time.sleep(wait)
        send()
    producer.flush()
    client.close()
    ordered = sorted(taken[total // 10 :])
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[int(len(ordered) * 0.99)]}


def watch_gap(url: str, topic: str) -> None:
    """Publish for ever; print the time of each acknowledgement (seconds of a clock that all processes share)."""
    client = client_of(url)
    producer = client.create_producer(topic, send_timeout_millis=0, block_if_queue_full=True, batching_enabled=False)
    lock = threading.Lock()

    def done(result: Any, _: Any) -> None:
        if str(result).endswith(".Ok"):
            with lock:
                print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)

    while True:
        producer.send_async(b"x", done)
        time.sleep(0.005)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["publish", "consume", "latency", "gap"])
    parser.add_argument("url")
    parser.add_argument("--topic", default="persistent://public/default/bench")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--trust", default="", help="file of the certificates to trust")
    parser.add_argument("--token", default="", help="file with a token")
    options = parser.parse_args()
    if options.trust:
        SHOWN |= {"tls_trust_certs_file_path": options.trust, "tls_validate_hostname": True}
    if options.token:
        SHOWN["authentication"] = pulsar.AuthenticationToken(Path(options.token).read_text().strip())
    if options.what == "publish":
        print(json.dumps(publish(options.url, options.topic, options.count, options.size)))
    elif options.what == "consume":
        print(json.dumps(consume(options.url, options.topic, options.count)))
    elif options.what == "latency":
        print(json.dumps(latency(options.url, options.topic, options.rate, options.seconds, options.size)))
    else:
        watch_gap(options.url, options.topic)
