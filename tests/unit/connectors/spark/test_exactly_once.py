"""Which entries a task of an exactly-once stream makes of its rows, with a client that only counts."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pulsar

from connectors.spark.exactly_once import GROUP_BYTES, Attempt, OnceSender
from connectors.spark.message import Outgoing
from connectors.spark.write_options import parse_write_options


class Producer:
    """Makes an entry of what was sent up to a flush."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client = client
        self._name = name
        self._sent: list[tuple[bytes, int, Callable[[Any, Any], None]]] = []

    def last_sequence_id(self) -> int:
        return self._client.stored.get(self._name, -1)

    def topic(self) -> str:
        return "t"

    def send_async(self, value: bytes, done: Callable[[Any, Any], None], *, sequence_id: int) -> None:
        self._sent.append((value, sequence_id, done))

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

    def __init__(self) -> None:
        self.entries: list[list[int]] = []
        """The sizes of the messages of each."""
        self.stored: dict[str, int] = {}

    def partitions(self, topic: str) -> list[str]:
        return [topic]

    def producer(self, topic: str, name: str, more: Mapping[str, Any]) -> Producer:
        return Producer(self, name)


def test_a_large_message_does_not_share_an_entry_with_those_before_it() -> None:
    """Each is no more than a broker takes, and together they would be."""
    client = Client()
    options = parse_write_options({"service.url": "pulsar://127.0.0.1", "topic": "t", "deduplication": "true"})
    sender = OnceSender(options, client, Attempt("query", 0, 0))  # type: ignore[arg-type]
    sizes = [10, 20, GROUP_BYTES // 2, 5_000_000, 30, 40, GROUP_BYTES // 3, GROUP_BYTES // 3, GROUP_BYTES // 2]
    for size in sizes:
        sender.send(Outgoing(None, bytes(size), None, None, None))
    sender.finish()
    assert [size for entry in client.entries for size in entry] == sizes
    assert [entry for entry in client.entries if len(entry) > 1 and sum(entry) > GROUP_BYTES] == []
    assert len(client.entries) == 5
    sender.close()
