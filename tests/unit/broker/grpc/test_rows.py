"""What came by gRPC, as rows of the Spark source."""

from broker.grpc.publishing.grouping import Group, encode_group
from magnetar_core.topics.topics_pb2 import Message
from tests.unit.connectors.spark.entries import rows_of

COLUMNS = ("value", "__key", "__eventTime", "__messageProperties", "__batchIndex", "__sequenceId", "__producerName")


def test_spark_reads_groups_and_single_messages() -> None:
    one, two = Message(payload=b"a", key="k", properties={"p": "1"}, event_time_ms=5), Message(payload=b"b", key="k")
    group, alone = Group(("k", False, b"", b"")), Group((None, False, b"", b""))
    group.add(self := object(), 0, one, 1)
    group.add(self, 1, two, 1)
    alone.add(self, 2, Message(payload=b"c"), 1)
    entries = [
        encode_group(made, ids, producer_name="p", publish_time_ms=9).entry
        for made, ids in ((group, [3, 4]), (alone, [5]))
    ]
    rows = [tuple(row[name] for name in COLUMNS) for row in rows_of(entries, COLUMNS)]
    assert rows == [
        (b"a", b"k", 5000, {"p": "1"}, 0, 3, "p"),
        (b"b", b"k", None, {}, 1, 4, "p"),
        (b"c", None, None, {}, -1, 5, "p"),
    ]
