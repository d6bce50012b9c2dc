"""A subscription with retries that consumers of Java's client and of ours share: each goes on counting where the other
left off, and the dead letters of both look alike."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import magnetar
from tests.support.mixed_cluster import LINE, compile_java, run_java
from tests.support.processes import Standalone

HERE: Final = Path(__file__).parent
TOPIC: Final = "persistent://public/default/orders"
RETRY_TOPIC: Final = f"{TOPIC}-billing-RETRY"
DEAD_LETTER_TOPIC: Final = f"{TOPIC}-billing-DLQ"
MAX: Final = 3


class Taken(NamedTuple):
    """A message as a consumer was given it."""

    topic: str
    value: str
    key: str | None
    properties: dict[str, str]

    @property
    def failures(self) -> int:
        return int(self.properties.get("RECONSUMETIMES", "0"))


class Rig:
    def __init__(self, server: Standalone, folder: Path) -> None:
        self._folder = folder
        self._server = server
        self._classes = compile_java([HERE / "java" / "Retries.java"], folder / "classes", line=LINE)

    def publish(self, value: bytes, key: str, properties: dict[str, str]) -> magnetar.MessageId:
        with magnetar.Client(self._server.grpc_address) as client, client.producer(TOPIC) as producer:
            return producer.send(value, key=key, properties=properties)

    def java_fails(self, count: int) -> list[Taken]:
        """So many messages fail at a consumer of Java's client."""
        text = run_java(
            self._folder, self._classes, "Retries", self._server.service_url, TOPIC, "billing", str(MAX), str(count),
            line=LINE,
        )  # fmt: skip
        assert text.rstrip().endswith("END"), text[-3000:]
        lines = [line.split("|")[1:] for line in text.splitlines() if line.startswith("MESSAGE|")]
        return [
            Taken(topic, value, key, dict(pair.split("=") for pair in properties.strip("{}").split(", ") if pair))
            for topic, value, key, properties in lines
        ]

    def ours_fails(self, count: int) -> list[Taken]:
        """So many messages fail at a consumer of our client."""
        with magnetar.Client(self._server.grpc_address) as client:
            retry = magnetar.Retry(max=MAX, backoff=1)
            with client.consumer(TOPIC, "billing", type="shared", from_earliest=True, retry=retry) as consumer:
                taken = []
                for _ in range(count):
                    message = consumer.receive(60)
                    taken.append(taken_of(message))
                    consumer.nack(message)
                return taken

    def dead_letter(self) -> Taken:
        """The only message of the dead letter topic."""
        with (
            magnetar.Client(self._server.grpc_address) as client,
            client.reader(DEAD_LETTER_TOPIC) as reader,
        ):
            letter = taken_of(reader.receive(60))
            assert not reader.has_more()
        return letter


def taken_of(message: magnetar.Message[bytes]) -> Taken:
    return Taken(message.topic, message.value.decode(), message.key, dict(message.properties))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Standalone(tmp_path / "data") as server:
        yield Rig(server, tmp_path)


@pytest.mark.parametrize("clients", ["java ours java ours", "ours java ours java"])
def test_a_message_that_fails_at_both_is_counted_once_a_failure(
    cell: Callable[[str, str], None], rig: Rig, clients: str
) -> None:
    cell("retries and dead letters of the official Java client and of ours, one subscription", "our broker")
    message_id = rig.publish(b"a", key="k", properties={"p": "q"})
    for failures, client in enumerate(clients.split()):
        (taken,) = rig.java_fails(1) if client == "java" else rig.ours_fails(1)
        assert taken.failures == failures, client
        assert taken.topic == (RETRY_TOPIC if failures else TOPIC)
        assert (taken.value, taken.key, taken.properties["p"]) == ("a", "k", "q")
    letter = rig.dead_letter()
    assert letter == Taken(
        DEAD_LETTER_TOPIC,
        "a",
        "k",
        {
            "p": "q",
            "RECONSUMETIMES": str(MAX + 1),
            "DELAY_TIME": "1000",
            "REAL_TOPIC": TOPIC,
            "REAL_SUBSCRIPTION": "billing",
            "ORIGIN_MESSAGE_ID": f"{message_id.ledger_id}:{message_id.entry_id}:-1",
            "ORIGIN_MESSAGE_IDY_TIME": f"{message_id.ledger_id}:{message_id.entry_id}:-1",
        },
    )
