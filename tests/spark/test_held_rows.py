"""The memory of one task that writes with `deduplication`: rows of all its topic partitions share one budget."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice

import pulsar
import pytest
from pyspark.sql import types as t

from connectors.spark.options.write import HELD_BYTES, parse_write_options
from connectors.spark.sink import StreamTopicWriter, Written
from connectors.spark.write.exactly_once import Attempt, ExactlyOnceSender
from connectors.spark.write.message import Outgoing, size_of
from connectors.spark.write.sending import Brokers
from connectors.spark.write.sequences import java_hash
from magnetar.inspect.broker_admin import AdminClient
from magnetar_core.runtime.types import MIB
from tests.support.processes import Standalone, received

pytestmark = [pytest.mark.spark, pytest.mark.process]


def keys(partitions: int) -> list[str]:
    """One for each partition, by number."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(java_hash(f"k{number}") % partitions, f"k{number}")
        number += 1
    return [found[partition] for partition in range(partitions)]


def rows(partitions: int, rounds: int, size_bytes: int) -> Iterator[Outgoing]:
    """A row for each partition, then the next ones; the values compress well."""
    named = keys(partitions)
    for number in range(rounds):
        for partition in range(partitions):
            value = (b"%d:%d " % (partition, number)).ljust(size_bytes, b".")
            yield Outgoing(None, value, named[partition], None, None)


def head_of(value: bytes | None) -> bytes:
    return (value or b"")[:20].rstrip(b".")


def heads(client: pulsar.Client, topic: str) -> Counter[bytes]:
    """Of all values in the topic, one after the other: they are many megabytes."""
    found: Counter[bytes] = Counter()
    for partition in client.get_topic_partitions(topic):
        reader = client.create_reader(partition, pulsar.MessageId.earliest, receiver_queue_size=2)
        while reader.has_message_available():
            found[head_of(reader.read_next(30_000).data())] += 1
        reader.close()
    return found


class Task:
    """What an attempt did."""

    def __init__(
        self, standalone: Standalone, topic: str, sent: Iterable[Outgoing], *, ends: bool, **options: str
    ) -> None:
        """One that does not end is gone without a word, as after `kill -9`."""
        parsed = parse_write_options({
            "service.url": standalone.service_url, "topic": topic, "deduplication": "true",
            "pulsar.producer.compressionType": "LZ4", **options,
        })  # fmt: skip
        self.file_bytes = 0
        with (
            closing(Brokers(parsed, None)) as brokers,
            closing(ExactlyOnceSender(parsed, brokers, Attempt(topic, 0, 0))) as sender,
        ):
            for message in sent:
                sender.send(message)
                self.file_bytes = max(self.file_bytes, sender._file.size_bytes)
            self.repeated = sender.finish() if ends else 0
            self.most_bytes = sender.room.most_bytes


def make(standalone: Standalone, topic: str, partitions: int) -> None:
    admin = AdminClient([standalone.admin_url])
    admin.create_topic(topic, partitions)
    admin.call("POST", f"/admin/v2/{AdminClient.path_of(topic)}/deduplicationEnabled", True)


def test_a_repeated_task_with_other_rows_is_told_in_its_own_log_and_in_that_of_the_driver(
    standalone: Standalone, client: pulsar.Client, caplog: pytest.LogCaptureFixture
) -> None:
    make(standalone, "held-others", 2)
    sent = list(rows(2, 30, 100))
    Task(standalone, "held-others", sent[:40], ends=False)
    caplog.clear()
    second = Task(standalone, "held-others", sent[::-1], ends=True)
    assert second.repeated == len(sent), "both partitions have rows of the former attempt"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    told = "the rows, or their order, differ from those of a former attempt; all are sent, and some will be there twice"
    assert sorted(warnings) == [
        f"persistent://public/default/held-others-partition-{number}, batch 0, task 0: {told}" for number in range(2)
    ]
    found = Counter(message.data() for message in received(client, "held-others"))
    assert set(found) == {message.value for message in sent}, "never fewer"

    caplog.clear()
    options = parse_write_options({"service.url": standalone.service_url, "topic": "held-others"})
    driver = StreamTopicWriter(options, t.StructType([t.StructField("value", t.BinaryType())]))
    driver.commit([Written(len(sent), second.repeated), Written(5, 0)], 7)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("batch 7 was repeated with other rows, or in another order: of its messages up to 60 are")
    caplog.clear()
    driver.commit([Written(5, 0)], 8)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.timeout(300)
def test_a_task_with_rows_of_a_megabyte_for_200_partitions_keeps_its_budget_and_each_row_is_there_once(
    standalone: Standalone, client: pulsar.Client
) -> None:
    make(standalone, "held-200", 200)
    first = Task(standalone, "held-200", islice(rows(200, 2, 1_000_000), 300), ends=False)
    assert first.file_bytes == 0, "what nobody has sent before need not be held"
    second = Task(standalone, "held-200", rows(200, 2, 1_000_000), ends=True)
    assert second.repeated == 0
    above = size_of(next(rows(200, 2, 1_000_000)))  # the row that is above the budget, before it is spilled
    assert second.most_bytes <= HELD_BYTES + above
    assert second.file_bytes > 100 * MIB, "200 MB are stored already, and were compared"
    assert heads(client, "held-200") == Counter(head_of(message.value) for message in rows(200, 2, 1_000_000))


def test_groups_that_are_not_complete_are_sent_where_there_is_no_room_for_all_of_them(
    standalone: Standalone, client: pulsar.Client
) -> None:
    make(standalone, "held-groups", 20)
    sent = list(rows(20, 10, 20_000))
    small = {"deduplicationHeldBytes": "1m"}
    first = Task(standalone, "held-groups", sent[:150], ends=False, **small)
    assert first.most_bytes <= MIB + size_of(sent[0])
    second = Task(standalone, "held-groups", sent, ends=True, **small)
    assert second.repeated == 0
    assert second.most_bytes <= MIB + size_of(sent[0])
    assert heads(client, "held-groups") == Counter(head_of(message.value) for message in sent)
