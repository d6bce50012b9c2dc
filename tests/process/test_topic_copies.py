"""`magnetar topics export` and `import` on a standalone: every message, and every byte of an entry, is the same."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.backup.topic_format import TopicReader
from managed_ledger.messages import parse_metadata
from managed_ledger.messages_pb2 import LZ4, NONE, ZSTD, EncryptionKeys, KeyValue
from managed_ledger.schemas.stored import version_of
from tests.support.processes import Standalone
from tests.support.raw_producer import RawProducer
from tests.support.shell import TIMEOUT_S, run_command
from tests.support.warm import warm_folder

pytestmark = pytest.mark.process


class First(Record):  # type: ignore[misc]
    name = String()


class Second(Record):  # type: ignore[misc]
    name = String()
    count = Integer(default=7, required_default=True)


class Copies:
    """Types commands beside a standalone, and publishes to it."""

    def __init__(self, standalone: Standalone, folder: Path, client: pulsar.Client) -> None:
        self.standalone = standalone
        self.folder = folder
        self.client = client
        self.admin = AdminClient(standalone.admin_url)
        addresses = {"MAGNETAR_ADMIN_URL": standalone.admin_url, "MAGNETAR_SERVICE_URL": standalone.service_url}
        self.environment = {**os.environ, **addresses}

    def run(self, *arguments: str, code: int = 0) -> str:
        """What was printed; for *code* 2, to standard error."""
        ended = run_command(*arguments, env=self.environment)
        assert ended.returncode == code, f"{arguments}\n{ended.stdout}\n{ended.stderr}"
        return ended.stderr if code else ended.stdout

    def copy(self, topic: str, target: str, *options: str) -> Path:
        """Export *topic*, and import it as *target*."""
        path = self.folder / f"{topic}.{target}"
        self.run("topics", "export", topic, str(path))
        self.run("topics", "import", str(path), target, *options)
        return path

    def messages(self, topic: str) -> list[tuple[object, ...]]:
        """What the official client gives of each message, but for its id; partition by partition."""
        seen: list[tuple[object, ...]] = []
        for number, name in enumerate(self.client.get_topic_partitions(topic)):
            reader = self.client.create_reader(name, pulsar.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(timeout_millis=10_000)
                seen.append(
                    (
                        number, message.data(), message.partition_key(),
                        message.properties(), message.ordering_key(), message.publish_timestamp(),
                        message.event_timestamp(),
                        message.producer_name(), message.schema_version(),
                    )
                )  # fmt: skip
            reader.close()
        return seen

    def entries(self, path: Path) -> list[tuple[int, bytes]]:
        with path.open("rb") as file:
            return [(partition, bytes(entry)) for partition, entry in TopicReader(file.read, str(path)).entries()]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    folder = tmp_path_factory.mktemp("copies")
    with Standalone(folder / "data") as standalone:
        client = pulsar.Client(standalone.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        yield Copies(standalone, folder, client)
        client.close()


def publish_all_kinds(client: pulsar.Client, topic: str) -> int:
    """Batches of each codec, messages alone, chunks, and two versions of a schema; returns how many messages."""
    count = 0
    for schema, made in ((AvroSchema(First), First), (AvroSchema(Second), Second)):
        for codec in (pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD):
            producer = client.create_producer(
                topic, schema=schema, compression_type=codec, batching_enabled=True, batching_max_messages=10,
                batching_max_publish_delay_ms=50,
                message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            )  # fmt: skip
            for number in range(25):
                producer.send_async(
                    made(name=f"n{number}"), None, partition_key=f"key-{number}", ordering_key=f"o{number % 3}",
                    properties={"number": str(number), "ü": "ß"}, event_timestamp=1_700_000_000_000 + number,
                )  # fmt: skip
                count += 1
            producer.flush()
            producer.close()
    producer = client.create_producer(topic, schema=AvroSchema(Second), batching_enabled=False, chunking_enabled=True)
    for number in range(2):
        producer.send(Second(name="x" * 6_000_000, count=number), partition_key=f"key-{number}")
        count += 1
    producer.close()
    return count


def test_each_message_is_the_same_in_the_copy(copies: Copies) -> None:
    copies.run("topics", "create", "whole", "--partitions", "2")
    copies.admin.call("PUT", "/admin/v2/persistent/public/default/whole/properties", {"team": "money"})
    copies.run("subscriptions", "create", "whole", "billing")
    count = publish_all_kinds(copies.client, "whole")
    path = copies.folder / "whole.file"
    said = json.loads(copies.run("topics", "export", "whole", str(path), "--json"))
    assert said["left_out_subscriptions"] == ["billing"]
    assert path.stat().st_mode & 0o777 == 0o600
    said = json.loads(copies.run("topics", "import", str(path), "whole-copy", "--json"))
    assert said["schemas"] == 2
    before, after = copies.messages("whole"), copies.messages("whole-copy")
    assert len(before) == count
    assert {one[0] for one in before} == {0, 1}
    assert before == after
    assert copies.admin.call("GET", "/admin/v2/persistent/public/default/whole-copy/properties") == {"team": "money"}
    again = copies.folder / "whole.again"
    copies.run("topics", "export", "whole-copy", str(again))
    assert copies.entries(again) == copies.entries(path)
    stored = [parse_metadata(entry) for _, entry in copies.entries(path)]
    assert {metadata.compression for metadata in stored} == {NONE, LZ4, ZSTD}
    assert any(metadata.num_messages_in_batch > 1 for metadata in stored)
    assert any(metadata.num_chunks_from_msg > 1 for metadata in stored)
    assert {version_of(metadata.schema_version) for metadata in stored} == {0, 1}


def test_entries_that_no_client_here_reads_are_copied_byte_for_byte(copies: Copies) -> None:
    copies.run("topics", "create", "odd")
    copies.run("topics", "lookup", "odd")  # its broker takes the bundle
    with RawProducer(("127.0.0.1", copies.standalone.port), "persistent://public/default/odd", "some one") as producer:
        kinds: tuple[tuple[bytes, dict[str, Any]], ...] = (
            (b"", {"null_value": True, "partition_key": "gone"}),
            (bytes(range(256)), {"encryption_keys": [EncryptionKeys(key="k", value=b"\x00\xff")]}),
            (b"key in bytes", {"partition_key": "AP8=", "partition_key_b64_encoded": True}),
            (b"hidden", {"properties": [KeyValue(key="a", value="1"), KeyValue(key="a", value="2")]}),
            (b"late", {"deliver_at_time": 1 << 42, "uuid": "u", "replicated_from": "elsewhere"}),
            (b"before", {"highest_sequence_id": 3}),
        )
        for number, (payload, fields) in enumerate(kinds):
            producer.send(number, payload, **fields)
            answer = producer.next()
            assert answer is not None
            assert answer.HasField("send_receipt"), answer
    path = copies.copy("odd", "odd-copy")
    again = copies.folder / "odd.again"
    copies.run("topics", "export", "odd-copy", str(again))
    assert len(copies.entries(path)) == 6
    assert copies.entries(again) == copies.entries(path)
    assert {parse_metadata(entry).producer_name for _, entry in copies.entries(again)} == {"some one"}


def test_a_version_of_a_schema_means_the_same_where_it_has_another_number(copies: Copies) -> None:
    producer = copies.client.create_producer("typed", schema=AvroSchema(First))
    producer.send(First(name="a"))
    producer.close()
    producer = copies.client.create_producer("typed-target", schema=AvroSchema(Second))
    producer.send(Second(name="b", count=1))
    producer.close()
    copies.copy("typed", "typed-target", "--append")
    lines = copies.run("read", "typed-target", "--json").splitlines()
    assert [json.loads(line)["value"] for line in lines] == [{"name": "b", "count": 1}, {"name": "a"}]


def test_a_pipe_carries_a_topic(copies: Copies) -> None:
    copies.run("produce", "piped", "-m", "one", "-m", "two")
    command = (
        f"'{warm_folder()}/magnetar' topics export piped - | '{warm_folder()}/magnetar' topics import - piped-copy"
    )
    subprocess.run(["sh", "-c", command], env=copies.environment, timeout=TIMEOUT_S, check=True)
    assert copies.messages("piped-copy") == copies.messages("piped")
    assert len(copies.messages("piped")) == 2


def test_what_would_mix_or_lack_messages_is_refused(copies: Copies) -> None:
    copies.run("produce", "some", "-m", "one")
    path = copies.copy("some", "some-copy")
    assert "some-copy has messages already" in copies.run("topics", "import", str(path), "some-copy", code=2)
    copies.run("topics", "import", str(path), "some-copy", "--append")
    assert [one[1] for one in copies.messages("some-copy")] == [b"one", b"one"]
    copies.run("topics", "create", "parts", "--partitions", "3")
    said = copies.run("topics", "import", str(path), "parts", code=2)
    assert "parts has 3 partitions, and persistent://public/default/some had no partitions" in said
    assert "is there already" in copies.run("topics", "export", "some", str(path), code=2)
    assert "does not exist" in copies.run("topics", "export", "nothing", str(copies.folder / "nothing"), code=2)
    assert not (copies.folder / "nothing").exists()
    assert "no-file cannot be read" in copies.run("topics", "import", "no-file", "never", code=2)
    cut = copies.folder / "cut"
    cut.write_bytes(path.read_bytes()[:-1])
    assert "was cut" in copies.run("topics", "import", str(cut), "never", code=2)
    assert "never" not in copies.run("topics", "list"), "a file is looked through before anything is made"
    said = copies.run(
        "topics", "export", "some", str(copies.folder / "x"), "--service-url", "pulsar://127.0.0.1:1", code=2
    )
    assert "no connection to pulsar://127.0.0.1:1" in said


def test_an_import_that_broke_off_says_what_is_there(copies: Copies) -> None:
    copies.run("produce", "long", "-m", "one")
    path = copies.copy("long", "long-copy")
    cut = path.read_bytes()[:-1]
    ended: Any = subprocess.run(
        [warm_folder() / "magnetar", "topics", "import", "-", "broken"], input=cut, env=copies.environment,
        capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "up to 1 entries are stored: delete the topic and import it again" in ended.stderr.decode()
    copies.run("topics", "delete", "broken", "--yes")
    copies.run("topics", "import", str(path), "broken")
    assert copies.messages("broken") == copies.messages("long")
