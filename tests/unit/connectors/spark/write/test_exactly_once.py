"""Which entries a task of an exactly-once stream makes of its rows, with a client that only counts."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from connectors.spark.options.write import parse_write_options
from connectors.spark.write.exactly_once import GROUP_BYTES, Attempt, ExactlyOnceSender
from connectors.spark.write.message import Outgoing


class Producer:
    """Makes an entry of what was sent up to a flush."""

    def __init__(self, client: "Client", name: str, queue: int, group_rows: int) -> None:
        self._client = client
        self._queue = queue
        self._group_rows = group_rows
        self._name = name
        self._sent: list[tuple[bytes, int, Callable[[Any, Any], None]]] = []

    def last_sequence_id(self) -> int:
        return self._client.stored.get(self._name, -1)

    def topic(self) -> str:
        return "t"

    def send_async(self, value: bytes, done: Callable[[Any, Any], None], *, sequence_id: int) -> None:
        assert not self._queue or len(self._sent) < self._queue, "it would wait for ever"
        self._sent.append((value, sequence_id, done))
        if len(self._sent) == self._group_rows:
            self.flush()

    def flush(self) -> None:
        sent, self._sent = self._sent, []
        if sent:
            self._client.entries.append([len(value) for value, _, _ in sent])
            self._client.stored[self._name] = sent[0][1]
        for _, _, done in sent:
            done(pulsar.Result.Ok, SimpleNamespace(ledger_id=lambda: 1))

    def close(self) -> None:
        assert not self._sent, "what is not flushed is lost"


class Client:
    """Stands for `Brokers`."""

    def __init__(self, queue: int = 5_000) -> None:
        self._queue = queue
        self.entries: list[list[int]] = []
        """The sizes of the messages of each."""
        self.stored: dict[str, int] = {}

    def partitions(self, topic: str) -> list[str]:
        return [topic]

    def producer(self, topic: str, name: str, more: Mapping[str, Any]) -> Producer:
        return Producer(self, name, self._queue, more["batching_max_messages"])


@pytest.mark.parametrize(("queue", "rows"), [(500, 1_000), (5_000, 10_000), (0, 10_000), (5_000, 1_000)])
def test_a_group_fits_into_the_queue_of_the_client(queue: int, rows: int) -> None:
    client = Client(queue)
    options = parse_write_options({
        "service.url": "pulsar://127.0.0.1", "topic": "t", "deduplication": "true",
        "pulsar.producer.maxPendingMessages": str(queue), "pulsar.producer.batchingMaxMessages": str(rows),
    })  # fmt: skip
    sender = ExactlyOnceSender(options, client, Attempt("query", 0, 0))  # type: ignore[arg-type]
    for _ in range(12_000):
        sender.send(Outgoing(None, b"x", None, None, None))
    sender.finish()
    assert sum(map(len, client.entries)) == 12_000
    assert max(map(len, client.entries)) == min(queue or rows, rows)
    sender.close()


def test_a_large_message_does_not_share_an_entry_with_those_before_it() -> None:
    """Each is no more than a broker takes, and together they would be."""
    client = Client()
    options = parse_write_options({"service.url": "pulsar://127.0.0.1", "topic": "t", "deduplication": "true"})
    sender = ExactlyOnceSender(options, client, Attempt("query", 0, 0))  # type: ignore[arg-type]
    sizes = [10, 20, GROUP_BYTES // 2, 5_000_000, 30, 40, GROUP_BYTES // 3, GROUP_BYTES // 3, GROUP_BYTES // 2]
    for size in sizes:
        sender.send(Outgoing(None, bytes(size), None, None, None))
    sender.finish()
    assert [size for entry in client.entries for size in entry] == sizes
    assert [entry for entry in client.entries if len(entry) > 1 and sum(entry) > GROUP_BYTES] == []
    assert len(client.entries) == 5
    sender.close()
