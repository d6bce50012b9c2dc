"""Many topics, a producer each, one official client: how long each topic goes without an acknowledgement.

    python -m bench.topic_gaps pulsar://… --topics 1000

Prints a JSON line `{"created_s": …}` when all producers are there. Then it publishes to each topic twice a second and
reads lines:

    mark      begin to look
    report    print one JSON line: for each topic [longest silence in s, when it began, when it ended or null], times of
              the clock that all processes share; and the 99th percentile of the time from send to receipt in ms
    end       close the producers and end

A message that was sent while its topic was away is acknowledged as soon as the topic is back: the end of a silence is
known to the millisecond although messages are half a second apart.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pulsar

from bench.client_load import client_of

PERIOD_S: Final = 0.5
CREATING_AT_ONCE: Final = 100
SILENT_S: Final = 0.001


class Silence:
    """The longest time without an acknowledgement of one topic."""

    def __init__(self) -> None:
        self.mark(0.0)

    def mark(self, now_s: float) -> None:
        self._last = now_s
        self._waits: list[tuple[float, float]] = []
        self.longest: tuple[float, float, float] = (0.0, now_s, now_s)

    def acknowledged(self, now_s: float) -> None:
        gone = now_s - self._last
        if gone > self.longest[0]:
            self.longest = (gone, self._last, now_s)
        self._last = now_s

    def report(self, now_s: float) -> tuple[float, float, float | None]:
        """(seconds, from, to); *to* is None for one that has not ended."""
        if now_s - self._last > self.longest[0]:
            return now_s - self._last, self._last, None
        return self.longest


class Load:
    """Publishes to all topics until it is told to end."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        self._client = client_of(url)
        self._silences = {topic: Silence() for topic in topics}
        self._latencies: list[float] = []
        self._is_ending = threading.Event()
        began = time.perf_counter()
        with ThreadPoolExecutor(CREATING_AT_ONCE) as pool:
            self._producers: dict[str, Any] = dict(zip(topics, pool.map(self._producer, topics), strict=True))
        self.created_s = time.perf_counter() - began
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _producer(self, topic: str) -> Any:
        return self._client.create_producer(
            topic, send_timeout_millis=0, batching_enabled=False, max_pending_messages=100_000
        )

    def _publish(self) -> None:
        pause_s = PERIOD_S / len(self._producers)
        due = time.monotonic()
        while True:
            for topic, producer in self._producers.items():
                if self._is_ending.is_set():
                    return
                wait_s = due - time.monotonic()
                if wait_s > SILENT_S:
                    time.sleep(wait_s)
                self._send(topic, producer)
                due += pause_s

    def _send(self, topic: str, producer: Any) -> None:
        sent = time.monotonic()

        def done(result: Any, _: Any) -> None:
            if result == pulsar.Result.Ok:
                now = time.monotonic()
                self._silences[topic].acknowledged(now)
                self._latencies.append(now - sent)

        producer.send_async(b"x" * 100, done)

    def mark(self) -> None:
        now = time.monotonic()
        self._latencies.clear()
        for silence in self._silences.values():
            silence.mark(now)

    def report(self) -> dict[str, Any]:
        now = time.monotonic()
        taken = sorted(self._latencies)
        return {
            "silences": {topic: silence.report(now) for topic, silence in self._silences.items()},
            "p99_ms": taken[int(len(taken) * 0.99)] * 1000 if taken else None,
            "receipts": len(taken),
        }

    def end(self) -> None:
        self._is_ending.set()
        self._thread.join()
        self._client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--prefix", default="persistent://public/default/gap-")
    options = parser.parse_args()
    load = Load(options.url, [f"{options.prefix}{number}" for number in range(options.topics)])
    print(json.dumps({"created_s": load.created_s}), flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "mark":
            load.mark()
        elif word == "report":
            print(json.dumps(load.report()), flush=True)
        elif word == "end":
            break
    load.end()


if __name__ == "__main__":
    main()
