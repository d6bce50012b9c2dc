"""`produce` and `consume` with a fake client whose answers the test decides."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner, Result

from magnetar.cli import main as cli
from magnetar.cli.messages import client as message_client


class Producer:
    """Answers when it is flushed."""

    def __init__(self, results: Callable[[int], Any]) -> None:
        self._results = results
        self.payloads: list[bytes] = []
        self.keys: list[str | None] = []
        self.waiting: list[tuple[int, Callable[[Any, Any], None]]] = []
        self.most_waiting_bytes = 0

    def send_async(self, payload: bytes, callback: Callable[[Any, Any], None], **options: Any) -> None:
        self.keys.append(options.get("partition_key"))
        self.waiting.append((len(self.payloads), callback))
        self.payloads.append(payload)
        waiting_bytes = sum(len(self.payloads[number]) for number, _ in self.waiting)
        self.most_waiting_bytes = max(self.most_waiting_bytes, waiting_bytes)

    def flush(self) -> None:
        for number, callback in self.waiting:
            callback(self._results(number), f"(0,{number},-1,-1)")
        self.waiting.clear()

    def close(self) -> None:
        pass


class Message:
    def __init__(self, number: int) -> None:
        self._number = number

    def data(self) -> bytes:
        return b"m%d" % self._number

    def partition_key(self) -> str:
        return ""

    def message_id(self) -> str:
        return f"(0,{self._number},-1,-1)"


class Consumer:
    def __init__(self) -> None:
        self.received = 0
        self.acknowledged: list[str] = []
        self.is_closed = False

    def receive(self, timeout_millis: int) -> Message:
        self.received += 1
        return Message(self.received - 1)

    def acknowledge(self, message: Message) -> None:
        self.acknowledged.append(message.message_id())

    def close(self) -> None:
        self.is_closed = True


class Client:
    def __init__(self) -> None:
        self.results: Callable[[int], Any] = lambda number: pulsar.Result.Ok
        self.producer = Producer(lambda number: self.results(number))
        self.consumer = Consumer()

    def create_producer(self, topic: str, **_: Any) -> Producer:
        return self.producer

    def subscribe(self, topic: str, name: str, **_: Any) -> Consumer:
        return self.consumer


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()

    @contextlib.contextmanager
    def client_of(service_url: str) -> Iterator[Client]:
        yield made

    monkeypatch.setattr(message_client, "client_of", client_of)
    return made


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(cli.main, arguments, **options)


def test_what_was_sent_is_summed_up(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"two\r\n\nfour")
    found = json.loads(run("produce", "t", "-m", "one", "-f", str(file), "--json").output)
    assert found.pop("seconds") >= 0
    assert found == {"topic": "t", "messages": 4, "failed": 0, "bytes": 10, "last_id": "0:3:-1"}
    assert client.producer.payloads == [b"one", b"two", b"", b"four"]


def test_what_was_not_acknowledged_is_an_exit_code_and_in_the_sum(client: Client) -> None:
    client.results = lambda number: pulsar.Result.Timeout if number == 2 else pulsar.Result.Ok
    found = run("produce", "t", "-f", "-", "--json", input="a\nb\nc\nd\n")
    assert found.exit_code == 2
    summary = json.loads(found.stdout)
    assert (summary["messages"], summary["failed"], summary["last_id"]) == (3, 1, "0:3:-1")
    assert found.stderr == "magnetar: 1 of 4 messages were not acknowledged: Result.Timeout\n"


def test_lines_that_are_piped_in_are_messages(client: Client) -> None:
    assert run("produce", "t", input="one\ntwo\n").output == "2 messages acknowledged\n"
    assert client.producer.payloads == [b"one", b"two"]
    found = run("produce", "t", input="")
    assert found.exit_code == 2
    assert "standard input is empty: give messages with -m" in found.stderr


def test_keys_are_split_off_lines(client: Client) -> None:
    assert run("produce", "t", "-K", "=>", "-m", "a=>1", input="").exit_code == 0
    assert run("produce", "t", "--key-separator", ":", input="b:2:3\nnone\n:4\n").exit_code == 0
    assert list(zip(client.producer.keys, client.producer.payloads, strict=True)) == [
        ("a", b"1"), ("b", b"2:3"), (None, b"none"), ("", b"4"),
    ]  # fmt: skip
    assert run("produce", "t", "-k", "all", "-m", "x").exit_code == 0
    assert client.producer.keys[-1] == "all"
    for wrong in (["-K", ""], ["-K", ":", "-k", "x"]):
        assert (
            "--key-separator must not be empty, and cannot be used with --key"
            in run("produce", "t", *wrong, "-m", "x").stderr
        )
    assert "is not UTF-8 text" in run("produce", "t", "-K", ":", input=b"\xff:x\n").stderr


def test_bytes_under_way_are_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    class Room(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            client.producer.flush()
            return True

    monkeypatch.setattr(message_client, "IN_FLIGHT_BYTES_MAX", 50_000)
    monkeypatch.setattr(threading, "Event", Room)
    lines = "\n".join(["x" * 10_000] * 20)
    assert run("produce", "t", "-f", "-", input=lines).output == "20 messages acknowledged\n"
    assert client.producer.most_waiting_bytes == 60_000


def test_what_was_received_is_acknowledged_and_summed_up(client: Client) -> None:
    found = run("consume", "t", "-n", "3", "-q", "--raw")
    assert found.output.startswith("3 messages, 6 B, in ")
    assert client.consumer.acknowledged == ["(0,0,-1,-1)", "(0,1,-1,-1)", "(0,2,-1,-1)"]
    assert client.consumer.is_closed


def test_a_message_that_could_not_be_shown_is_not_acknowledged(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("the terminal is gone")

    monkeypatch.setattr("click.echo", fail)
    assert run("consume", "t", "-n", "3", "--raw").exit_code != 0
    assert client.consumer.acknowledged == []
    assert client.consumer.is_closed
