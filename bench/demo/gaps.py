"""A load on many topics by one official client, and how long each topic goes without an acknowledgement.

A message that was sent while its topic was away is acknowledged as soon as the topic is back: the end of a silence is
known to the millisecond although the messages of a topic are half a second apart.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.clock import Clock

PERIOD_S: Final = 0.5
CREATING_AT_ONCE: Final = 100
PADDING: Final = b" " + b"x" * 90

_PAUSE_MIN_S: Final = 0.001


class Silence(NamedTuple):
    """The longest time without an acknowledgement of one topic; on the monotonic clock that processes share."""

    seconds: float
    begun_s: float
    ended_s: float | None
    """None: it has not ended."""


class TopicSilence:
    """Watches one topic."""

    def __init__(self) -> None:
        self.mark(0.0)

    def mark(self, now_s: float) -> None:
        """Begin to look."""
        self.longest_wait_s = 0.0
        """From sending a message to its receipt."""
        self._last_s = now_s
        self._longest = Silence(0.0, now_s, now_s)

    def acknowledged(self, now_s: float, wait_s: float = 0.0) -> None:
        """A message was, which was sent *wait_s* before."""
        self.longest_wait_s = max(self.longest_wait_s, wait_s)
        gone_s = now_s - self._last_s
        if gone_s > self._longest.seconds:
            self._longest = Silence(gone_s, self._last_s, now_s)
        self._last_s = now_s

    def longest(self, now_s: float) -> Silence:
        if now_s - self._last_s > self._longest.seconds:
            return Silence(now_s - self._last_s, self._last_s, None)
        return self._longest


class Load:
    """Sends numbered messages to all topics, one to each every *period_s*, until it is ended."""

    def __init__(self, client: Any, topics: Sequence[str], clock: Clock, period_s: float = PERIOD_S) -> None:
        """*client* is the official one; the producers are made at once, and make the topics."""
        import pulsar

        self._ok = pulsar.Result.Ok
        self._client = client
        self._clock = clock
        self._period_s = period_s
        self._silences = {topic: TopicSilence() for topic in topics}
        self.acknowledged: dict[str, set[int]] = {topic: set() for topic in topics}
        """The numbers of each topic's messages that were acknowledged."""
        self.failures: dict[str, int] = {}
        self._latencies_s: list[float] = []
        self._is_ending = threading.Event()
        began = clock.monotonic()
        with ThreadPoolExecutor(CREATING_AT_ONCE) as pool:
            self._producers: dict[str, Any] = dict(zip(topics, pool.map(self._producer, topics), strict=True))
        self.created_s = clock.monotonic() - began
        """How long that took."""
        self._thread = threading.Thread(target=self._publish, name="load", daemon=True)
        self._thread.start()

    def _producer(self, topic: str) -> Any:
        return self._client.create_producer(
            topic, send_timeout_millis=0, batching_enabled=False, max_pending_messages=100_000
        )

    def _publish(self) -> None:
        pause_s = self._period_s / len(self._producers)
        due_s, number = self._clock.monotonic(), 0
        while True:
            for topic, producer in self._producers.items():
                if self._is_ending.is_set():
                    return
                wait_s = due_s - self._clock.monotonic()
                if wait_s > _PAUSE_MIN_S:
                    self._is_ending.wait(wait_s)
                self._send(topic, producer, number)
                due_s += pause_s
            number += 1

    def _send(self, topic: str, producer: Any, number: int) -> None:
        sent_s = self._clock.monotonic()

        def done(result: Any, _: Any) -> None:
            if result == self._ok:
                now_s = self._clock.monotonic()
                self._silences[topic].acknowledged(now_s, now_s - sent_s)
                self._latencies_s.append(now_s - sent_s)
                self.acknowledged[topic].add(number)
            else:
                self.failures[str(result)] = self.failures.get(str(result), 0) + 1

        producer.send_async(b"%d" % number + PADDING, done)

    def mark(self) -> None:
        """Begin to look at silences and latencies."""
        now_s = self._clock.monotonic()
        self._latencies_s.clear()
        for silence in self._silences.values():
            silence.mark(now_s)

    def silences(self) -> Mapping[str, Silence]:
        """Of each topic, since `mark`."""
        now_s = self._clock.monotonic()
        return {topic: silence.longest(now_s) for topic, silence in self._silences.items()}

    def waits(self) -> list[float]:
        """The longest time from send to receipt of each topic since `mark`, in s, ascending."""
        return sorted(silence.longest_wait_s for silence in self._silences.values())

    def p99_ms(self) -> float | None:
        """From send to receipt, since `mark`; None without any."""
        taken = sorted(self._latencies_s)
        return taken[int(len(taken) * 0.99)] * 1000 if taken else None

    def finish(self) -> None:
        """Send no more, and wait until all that was sent is answered."""
        self._is_ending.set()
        self._thread.join()
        for producer in self._producers.values():
            producer.flush()

    def end(self) -> None:
        """`finish`, and close the client."""
        self.finish()
        self._client.close()
