"""The topic API beside the official client, on one standalone: `python -m bench topic_api`.

One client process at a time, both clients in turn; the median of the rounds. Rates are what a busy machine leaves, so
read the processor time: that of the client, and of the standalone meanwhile, a message. `python -m bench.topic_api send
ours ADDRESS TOPIC` is one measurement, as a line of JSON.
"""

import argparse
import asyncio
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import magnetar
from bench.client_load import client_of
from bench.process_facts import cpu_seconds

SIZES = (100, 1024)
CHUNK = 5_000
COUNT = 200_000
AWAITED = 2_000
KEYS = 10_000


class Meter:
    """What a part of a program takes."""

    def __enter__(self) -> "Meter":
        self._began_s = time.perf_counter()
        self._cpu_s = _cpu_s()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began_s
        self.cpu_s = _cpu_s() - self._cpu_s

    def facts(self, count: int) -> dict[str, float]:
        return {"rate": count / self.seconds, "cpu_us": self.cpu_s / count * 1e6}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# ------------------------------------------------------------------------------------------ ours


async def our_sends(client: magnetar.AsyncClient, topic: str, count: int, size: int) -> dict[str, float]:
    """A task for each message, CHUNK at a time."""
    producer = client.producer(topic)
    payload = bytes(size)
    await producer.send(payload)
    with Meter() as meter:
        for _ in range(count // CHUNK):
            await asyncio.gather(*(producer.send(payload) for _ in range(CHUNK)))
    return meter.facts(count)


async def our_keys(client: magnetar.AsyncClient, topic: str, count: int, size: int) -> dict[str, float]:
    """As `our_sends`, each message with the next of KEYS keys."""
    producer = client.producer(topic)
    payload, keys = bytes(size), [f"customer-{number}" for number in range(KEYS)]
    await producer.send(payload)
    with Meter() as meter:
        for begin in range(0, count, CHUNK):
            first = begin % KEYS
            await asyncio.gather(*(producer.send(payload, key=key) for key in keys[first : first + CHUNK]))
    return meter.facts(count)


async def our_lists(client: magnetar.AsyncClient, topic: str, count: int, size: int) -> dict[str, float]:
    producer = client.producer(topic)
    messages = [bytes(size)] * CHUNK
    await producer.send(messages[0])
    with Meter() as meter:
        for _ in range(count // CHUNK):
            await producer.send_many(messages)
    return meter.facts(count)


async def our_iteration(client: magnetar.AsyncClient, topic: str, count: int, size: int) -> dict[str, float]:
    async with client.consumer(topic, "bench", from_earliest=True, queue_size=CHUNK) as consumer:
        consumer.ack(await consumer.receive(10))
        taken = 0
        with Meter() as meter:
            async for message in consumer:
                consumer.ack(message)
                taken += 1
                if taken == count:
                    break
            await consumer.flush()
        return meter.facts(count)


async def our_batches(client: magnetar.AsyncClient, topic: str, count: int, size: int) -> dict[str, float]:
    async with client.consumer(topic, "bench", from_earliest=True, queue_size=CHUNK) as consumer:
        consumer.ack(await consumer.receive(10))
        taken = 0
        with Meter() as meter:
            while taken < count:
                messages = await consumer.receive_batch(1000)
                consumer.ack(messages)
                taken += len(messages)
            await consumer.flush()
        return meter.facts(taken)


async def our_awaited(client: magnetar.AsyncClient, topic: str, count: int, size: int) -> dict[str, float]:
    producer = client.producer(topic)
    payload = bytes(size)
    await producer.send(payload)
    taken = []
    with Meter() as meter:
        for _ in range(AWAITED):
            began = time.perf_counter()
            await producer.send(payload)
            taken.append(time.perf_counter() - began)
    return {**meter.facts(AWAITED), "p50_ms": statistics.median(taken) * 1000}


# ------------------------------------------------------------------------------------------ the official client


def their_sends(client: Any, topic: str, count: int, size: int) -> dict[str, float]:
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=CHUNK, batching_enabled=True,
        batching_max_publish_delay_ms=1,
    )  # fmt: skip
    payload = bytes(size)
    producer.send(payload)
    with Meter() as meter:
        for _ in range(count):
            producer.send_async(payload, lambda result, id_: None)
        producer.flush()
    return meter.facts(count)


def their_keys(client: Any, topic: str, count: int, size: int) -> dict[str, float]:
    """With batches as they are by default: a key of one message in each."""
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=CHUNK, batching_enabled=True,
        batching_max_publish_delay_ms=1,
    )  # fmt: skip
    payload, keys = bytes(size), [f"customer-{number}" for number in range(KEYS)]
    producer.send(payload)
    with Meter() as meter:
        for number in range(count):
            producer.send_async(payload, lambda result, id_: None, partition_key=keys[number % KEYS])
        producer.flush()
    return meter.facts(count)


def their_iteration(client: Any, topic: str, count: int, size: int) -> dict[str, float]:
    consumer = _their_consumer(client, topic)
    with Meter() as meter:
        for _ in range(count):
            consumer.acknowledge(consumer.receive(timeout_millis=10_000))
    return meter.facts(count)


def their_batches(client: Any, topic: str, count: int, size: int) -> dict[str, float]:
    consumer = _their_consumer(client, topic)
    taken = 0
    with Meter() as meter:
        while taken < count:
            messages = consumer.batch_receive()
            for message in messages:
                consumer.acknowledge(message)
            taken += len(messages)
    return meter.facts(taken)


def _their_consumer(client: Any, topic: str) -> Any:
    import pulsar

    consumer = client.subscribe(
        topic, "bench", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=CHUNK,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(1000, -1, 100),
    )  # fmt: skip
    consumer.acknowledge(consumer.receive(timeout_millis=10_000))
    return consumer


def their_awaited(client: Any, topic: str, count: int, size: int) -> dict[str, float]:
    producer = client.create_producer(topic, batching_enabled=False)
    payload = bytes(size)
    producer.send(payload)
    taken = []
    with Meter() as meter:
        for _ in range(AWAITED):
            began = time.perf_counter()
            producer.send(payload)
            taken.append(time.perf_counter() - began)
    return {**meter.facts(AWAITED), "p50_ms": statistics.median(taken) * 1000}


Ours = Callable[[magnetar.AsyncClient, str, int, int], Awaitable[dict[str, float]]]
Theirs = Callable[[Any, str, int, int], dict[str, float]]

# What is measured, with ours and theirs.
CASES: dict[str, tuple[str, Ours, Theirs]] = {
    "send": ("`send`, 5,000 under way", our_sends, their_sends),
    "keys": ("`send` with 10,000 keys, 5,000 under way", our_keys, their_keys),
    "list": ("`send_many`", our_lists, their_sends),
    "iteration": ("receive and acknowledge, `async for`", our_iteration, their_iteration),
    "batches": ("`receive_batch` and acknowledge", our_batches, their_batches),
    "awaited": ("one `send` awaited", our_awaited, their_awaited),
}
READING = ("iteration", "batches")


def measured(case: str, whose: str, address: str, topic: str, count: int, size: int) -> dict[str, float]:
    _, ours, theirs = CASES[case]
    if whose == "theirs":
        client = client_of(address)
        try:
            return theirs(client, topic, count, size)
        finally:
            client.close()

    async def run() -> dict[str, float]:
        async with magnetar.AsyncClient(address) as client:
            return await ours(client, topic, count, size)

    return asyncio.run(run())


@contextmanager
def standalone() -> Iterator[tuple[str, str, int]]:
    """(gRPC address, service URL, process id) of a standalone on free ports."""
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
            yield grpc[1], service[1], process.pid
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def rows(run_json: Callable[..., dict[str, Any]], rounds: int) -> list[tuple[str, str]]:
    """The table's rows; *run_json* runs a module with arguments and gives its JSON line."""
    results: dict[tuple[str, int, str], list[dict[str, float]]] = {}
    with standalone() as (grpc, service, pid):
        for number in range(rounds):
            for size in SIZES:
                for case in CASES:
                    for whose, address in (("ours", grpc), ("theirs", service)):
                        topic = f"{case}-{size}-{whose}-{number}"
                        run = (address, topic, "--count", str(COUNT), "--size", str(size))
                        if case in READING:
                            _with_subscription(service, topic)
                            run_json("bench.topic_api", "list", whose, *run)
                        before_s = cpu_seconds(pid)
                        facts = run_json("bench.topic_api", case, whose, *run)
                        count = AWAITED if case == "awaited" else COUNT
                        facts["server_us"] = (cpu_seconds(pid) - before_s) / count * 1e6
                        results.setdefault((case, size, whose), []).append(facts)
    return [
        (f"topic API, {CASES[case][0]}, {size} B", _row(results[case, size, "ours"], results[case, size, "theirs"]))
        for case in CASES
        for size in SIZES
    ]


def _with_subscription(service: str, topic: str) -> None:
    """So that nothing is deleted before it is read."""
    client = client_of(service)
    client.subscribe(topic, "bench").close()
    client.close()


def _row(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> str:
    """Medians of ours and theirs, and the ratio that is larger the better we are."""
    cells = []
    for name, what, digits in (("cpu_us", "µs of the client", 1), ("server_us", "µs of the server", 1),
                               ("p50_ms", "ms p50", 2), ("rate", "messages a second", 0)):  # fmt: skip
        if name not in ours[0] or (name == "rate" and "p50_ms" in ours[0]):
            continue
        a, b = (statistics.median(one[name] for one in side) for side in (ours, theirs))
        ratio = a / b if name == "rate" else b / a
        cells.append(f"{what} {a:,.{digits}f} and {b:,.{digits}f} ({ratio:.2f})")
    return "; ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("whose", choices=["ours", "theirs"])
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--size", type=int, default=SIZES[0])
    chosen = parser.parse_args()
    count = max(chosen.count // CHUNK, 1) * CHUNK
    print(json.dumps(measured(chosen.case, chosen.whose, chosen.address, chosen.topic, count, chosen.size)))


if __name__ == "__main__":
    main()
