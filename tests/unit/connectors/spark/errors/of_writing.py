"""Rows that cannot be messages, and brokers that do not take them."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pulsar
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.spark.options.write import parse_write_options
from connectors.spark.sink import StreamTopicWriter, TopicWriter
from connectors.spark.write import sending
from connectors.spark.write.exactly_once import Attempt, ExactlyOnceSender
from connectors.spark.write.message import Outgoing
from connectors.spark.write.outgoing import Columns
from connectors.spark.write.sending import Brokers, Sender
from connectors.spark.write.sequences import BATCHES_MAX, Numbering, Place, pack
from connectors.spark.write.spool import SpillFile, Spool
from magnetar_core.runtime.types import MIB
from tests.unit.broker.conftest import BrokerInMemory, broker_in_memory
from tests.unit.connectors.spark.errors.page import case, refused

Patch = pytest.MonkeyPatch


KINDS = {
    "string": t.StringType(), "binary": t.BinaryType(), "integer": t.IntegerType(), "void": t.NullType(),
}  # fmt: skip


def struct(text: str) -> t.StructType:
    """`name type, …`"""
    columns = [part.split() for part in text.split(", ")]
    return t.StructType([t.StructField(name, KINDS[kind], True) for name, kind in columns])


WRONG_COLUMNS = {
    "no topic: set option topic, or have a column __topic": ("value string", False, "value string, __topic string"),
    "columns … and … mean the same: leave one out": (
        "value string, key string, __key string", True, "value string, key string",
    ),
    "there is no column value": ("__key string", True, "value string, __key string"),
    "column value is …: cast it to binary or string": ("value integer", True, "value string"),
    "column … means nothing: write value, …": ("value string, price integer", True, "value string"),
    "column … cannot be …": ("value string, __key integer", True, "value string, __key string"),
}  # fmt: skip


@case(*WRONG_COLUMNS)
async def wrong_columns(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    errors = []
    for wrong, has_topic, right in WRONG_COLUMNS.values():
        with refused() as texts:
            Columns(struct(wrong), "binary", has_topic=has_topic)
        Columns(struct(right), "binary", has_topic=has_topic)
        errors += texts
    return errors


@case("… needs columns without", "… is a name that Avro does not allow", "…, which Avro has no type for: cast it")
async def wrong_records(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    errors = []
    for wrong, right in (
        ("__key string", "a string, __key string"), ("ü string", "u string"), ("a void", "a string"),
    ):  # fmt: skip
        with refused() as texts:
            Columns(struct(wrong), "avro", has_topic=True)
        Columns(struct(right), "avro", has_topic=True)
        errors += texts
    return errors


@case("a row has no topic: column … is null", "key … is not UTF-8")
async def wrong_rows(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    kind = struct("value string, __topic string, __key binary")

    def messages(topic: str | None, key: bytes, *, has_topic: bool = False) -> list[Outgoing]:
        row = {"value": "v", "__topic": topic, "__key": key}
        batch = pa.RecordBatch.from_pylist([row], schema=to_arrow_schema(kind, timezone="UTC"))
        return list(Columns(kind, "binary", has_topic=has_topic).messages(batch))

    with refused() as of_topic:
        messages(None, b"k")
    messages("t", b"k")
    messages(None, b"k", has_topic=True)
    with refused() as of_key:
        messages("t", b"\xff")
    messages("t", b"/w==")
    return of_topic + of_key


@case("deduplication belongs to streams")
async def once_without_a_stream(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    options = {"service.url": "pulsar://a:6650", "topic": "t"}
    with refused() as texts:
        TopicWriter(parse_write_options({**options, "deduplication": "true"}), struct("value string"))
    TopicWriter(parse_write_options(options), struct("value string"))
    StreamTopicWriter(parse_write_options({**options, "deduplication": "true"}), struct("value string"))
    return texts


@case("deduplication=true: Spark has not told which batch of which query this is")
async def once_outside_of_a_stream(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    with refused() as texts:
        Attempt.current()
    properties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "3"}
    context = SimpleNamespace(getLocalProperty=properties.get, partitionId=lambda: 1)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    assert Attempt.current() == ("q", 3, 1)
    return texts


@case("batch …: deduplication numbers … batches of a query", "the checkpoint was set back")
async def numbers_of_batches(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    with refused() as used_up:
        pack(Place(BATCHES_MAX, 0, 0))
    with closing(SpillFile()) as file:
        with refused() as set_back:
            Numbering(2, Spool(file), 10, MIB).opened(pack(Place(3, 0, 0)))
        Numbering(0, Spool(file), 10, MIB).opened(-1)  # of a query with a new checkpoint the broker knows nothing
    assert pack(Place(0, 0, 0)) > 0
    return used_up + set_back


ROOT: Final = Path(__file__).parents[5]
NOWHERE: Final = "pulsar://127.0.0.1:1"


@contextmanager
def brokers(url: str, definition: dict[str, Any] | None = None, /, **options: str) -> Iterator[Brokers]:
    # A broker that is there is waited for, however busy the machine is.
    patience_ms = "1000" if url == NOWHERE else "30000"
    given = {"service.url": url, "topic": "t", "pulsar.client.operationTimeoutMs": patience_ms, **options}
    with closing(Brokers(parse_write_options(given), definition)) as made:
        yield made


def sent(brokers: Brokers, value: bytes, topic: str = "t") -> None:
    sender = Sender(brokers._options, brokers)
    sender.send(Outgoing(topic, value, None, None, None))
    sender.finish()


@case("service.url=…: …")
async def no_address(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    with refused() as texts, brokers("pulsar:///t"):
        pass
    with brokers("pulsar://127.0.0.1:6650,127.0.0.2:6650"):
        return texts


@case("no producer for … at …: …")
async def no_producer(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    # In a process of its own: the logger of the first client of a process is that of all, also when it is closed.
    program = f"import asyncio, json; from {__name__} import refuse; print(json.dumps(asyncio.run(refuse())))"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    texts: list[str] = json.loads(done.stdout.splitlines()[-1])
    return texts


async def refuse() -> list[str]:
    """What is said of producers that brokers refuse."""

    def definition(kind: str) -> dict[str, Any]:
        return {"type": "record", "name": "Record", "fields": [{"name": "n", "type": kind}]}

    def steps(world: BrokerInMemory) -> list[str]:
        with brokers(world.url, definition("long"), valueFormat="avro") as first:
            sent(first, b"\x02")
        with brokers(world.url, definition("string"), valueFormat="avro") as other, refused() as texts:
            sent(other, b"\x02x")
        assert "IncompatibleSchema: the broker says: " in texts[0], texts
        assert "long" in texts[0], "in the broker's words"
        with brokers(world.url, definition("long"), valueFormat="avro") as fitting:
            sent(fitting, b"\x04")
        with brokers(NOWHERE) as nowhere, refused() as of_nobody:
            sent(nowhere, b"x")
        assert "service.url" in of_nobody[0], "where to look, and not what another client was told"
        return texts

    async with broker_in_memory() as world:
        return await world.run(steps, world)


@case("the brokers at … did not take a message: …")
async def not_taken(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    def steps(world: BrokerInMemory) -> list[str]:
        large = bytes(6_000_000)
        with brokers(world.url) as plain, refused() as texts:
            sent(plain, large)
        with brokers(world.url, **{"pulsar.producer.chunkingEnabled": "true"}) as in_chunks:
            sent(in_chunks, large)
        return texts

    async with broker_in_memory() as world:
        return await world.run(steps, world)


@case(
    "the partitions of … at …: …",
    "a message for … could not be sent",
    "messages for … were not confirmed",
    "a message for … was not confirmed",
)
async def brokers_that_go_away(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    """The task that follows finds them again."""

    def steps(world: BrokerInMemory) -> list[str]:
        errors = []

        with brokers(NOWHERE) as lost, refused() as texts:
            lost.partitions("t")
        errors.extend(texts)

        class Refusing:
            def topic(self) -> str:
                return "t"

            def send_async(self, *arguments: Any, **more: Any) -> None:
                raise pulsar.AlreadyClosed("AlreadyClosed")

            def flush(self) -> None:
                raise pulsar.AlreadyClosed("AlreadyClosed")

        deliveries = sending.Deliveries(world.url)
        with refused() as texts:
            deliveries.send(Refusing(), Outgoing("t", b"x", None, None, None))
        errors.extend(texts)
        with refused() as texts:
            deliveries.flush(Refusing())
        errors.extend(texts)

        class Silent(Refusing):
            def last_sequence_id(self) -> int:
                return -1

            def send_async(self, *arguments: Any, **more: Any) -> None: ...
            def flush(self) -> None: ...
            def close(self) -> None: ...

        options = parse_write_options({"service.url": world.url, "topic": "t", "deduplication": "true"})
        silent = SimpleNamespace(partitions=lambda topic: [topic], producer=lambda *some: Silent())
        sender = ExactlyOnceSender(options, silent, Attempt("q", 0, 0))  # type: ignore[arg-type]
        with closing(sender) as once, refused() as texts:
            once.send(Outgoing("t", b"x", None, None, None))
            once.finish()
        errors.extend(texts)
        with brokers(world.url) as again:
            sent(again, b"x")
        return errors

    async with broker_in_memory() as world:
        return await world.run(steps, world)


@case("the rows of one task name more than … topics")
async def many_topics(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    def steps(world: BrokerInMemory) -> list[str]:
        monkeypatch.setattr(sending, "TOPICS_MAX", 2)
        with brokers(world.url) as one:
            sender = Sender(one._options, one)
            for topic in ("a", "b", "a"):
                sender.send(Outgoing(topic, b"x", None, None, None))
            with refused() as texts:
                sender.send(Outgoing("c", b"x", None, None, None))
            sender.finish()
            sent(one, b"x", "c")  # in another job
        return texts

    async with broker_in_memory() as world:
        return await world.run(steps, world)


@case("deduplication=true, but the brokers do not de-duplicate …")
async def without_deduplication(tmp_path: Path, monkeypatch: Patch) -> list[str]:
    def write(world: BrokerInMemory, topic: str) -> None:
        with (
            brokers(world.url, deduplication="true") as made,
            closing(ExactlyOnceSender(made._options, made, Attempt("q", 0, 0))) as once,
        ):
            once.send(Outgoing(topic, b"x", None, None, None))
            once.finish()

    async with broker_in_memory() as world:
        with refused() as texts:
            await world.run(write, world, "t")
        await world.set_policies("public/default", deduplicationEnabled=True)
        await world.run(write, world, "u")
        return texts
