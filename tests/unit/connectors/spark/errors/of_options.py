"""Options that are wrong, and those that they should have been."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from connectors.spark.client_access import client_arguments
from connectors.spark.options.read import Kind, parse_options
from connectors.spark.options.write import parse_write_options
from connectors.spark.plan import cluster
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import Clock
from tests.unit.connectors.spark.errors.page import case, pattern, refused
from tests.unit.connectors.spark.world import in_order, numbered, reader_of, spark_world

Options = dict[str, str]


def read(options: Options) -> Any:
    return parse_options({"metadata.url": "zk:a:2181", "topic": "t"} | options)


def read_without_topic(options: Options) -> Any:
    return parse_options({"metadata.url": "zk:a:2181"} | options)


def stream(options: Options) -> Any:
    return parse_options({"metadata.url": "zk:a:2181", "topic": "t"} | options, Kind.STREAM)


def write(options: Options) -> Any:
    return parse_write_options({"service.url": "pulsar://a:6650", "topic": "t"} | options)


def client(options: Options) -> Any:
    return client_arguments({f"pulsar.client.{name}": value for name, value in options.items()})


_TOKEN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
_BASIC: Final = "org.apache.pulsar.client.impl.auth.AuthenticationBasic"
_DUE: Final = {"startingTimestamp": "2026-11-23"}

WRONG: Final[list[tuple[str, Callable[[Options], Any], Options, Options]]] = [
    ("unknown option …", read, {"keyFromat": "string"}, {"keyFormat": "string"}),
    ("option … does not exist here: …", read, {"includeHeaders": "true"}, {"columns": "value,__messageProperties"}),
    ("option … does not exist here: …", read, {"kafka.security.protocol": "SSL"}, {}),
    ("option … does not exist here: …", write, {"kafka.bootstrap.servers": "a:9092"}, {}),
    ("option … is not supported; there are …", write, {"pulsar.producer.maxPending": "1"},
     {"pulsar.producer.maxPendingMessages": "1"}),
    ("… and … mean the same and differ", read, {"path": "u"}, {}),
    ("… and … cannot both be given", read, {"topics": "u"}, {"topic": "t"}),
    ("… and … cannot both be given", read, {"topicsPattern": "t.*"}, {"topic": "t"}),
    ("… and … cannot both be given", read, {"startingOffsets": "earliest", **_DUE}, _DUE),
    ("… and … cannot both be given", read, {"compacted": "true", "backlogOf": "s"}, {"backlogOf": "s"}),
    ("… and … cannot both be given", read, {"encrypted": "raw", "encryption.keys": "/k"}, {"encrypted": "raw"}),
    ("… cannot both be on", write, {"deduplication": "true", "pulsar.producer.chunkingEnabled": "true"},
     {"deduplication": "true"}),
    ("… cannot both be on", write,
     {"pulsar.producer.batchingEnabled": "true", "pulsar.producer.chunkingEnabled": "true"},
     {"pulsar.producer.chunkingEnabled": "true"}),
    ("… belongs to …", read, {"publishTimeSlack": "1m"}, {"publishTimeSlack": "1m", **_DUE}),
    ("… belongs to …", read, {"includeInternal": "true"}, {}),
    ("… belongs to …", write, {"deduplicationHeldBytes": "1m"},
     {"deduplicationHeldBytes": "1m", "deduplication": "true"}),
    ("option … is not supported; there are …", write, {"pulsar.client.tlsKeyFilePath": "/k"},
     {"pulsar.client.tlsTrustCertsFilePath": "/k"}),
    ("… belongs to …", write, {"pulsar.client.authParams": "token:x"},
     {"pulsar.client.authParams": "token:x", "pulsar.client.authPluginClassName": _TOKEN}),
    ("… belongs to …", stream,
     {"subscription": "s", "service.url": "pulsar://a:6650", "pulsar.client.authParams": "token:x"},
     {"subscription": "s", "service.url": "pulsar://a:6650"}),
    ("… belongs to …", stream, {"maxTriggerDelay": "1m"}, {"maxTriggerDelay": "1m", "minMessagesPerTrigger": "5"}),
    ("minMessagesPerTrigger=… is more than …", stream, {"minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "4"},
     {"minMessagesPerTrigger": "4", "maxMessagesPerTrigger": "4"}),
    ("… has no meaning …", read, {"maxMessagesPerTrigger": "5"}, {}),
    ("… has no meaning …", stream, {"compacted": "true"}, {"maxMessagesPerTrigger": "5"}),
    ("… has no meaning …", read, {"unionSchemas": "true"}, {"unionSchemas": "true", "valueFormat": "auto"}),
    ("… has no meaning …", write,
     {"pulsar.producer.batchingEnabled": "false", "pulsar.producer.batchingMaxMessages": "5"},
     {"pulsar.producer.batchingMaxMessages": "5"}),
    ("… has no meaning …", write, {"deduplication": "true", "pulsar.producer.batchingMaxPublishDelayMicros": "5"},
     {"deduplication": "true"}),
    ("…=…: expected …", read, {"minPartitions": "0"}, {"minPartitions": "1"}),
    ("…=…: expected …", read, {"valueFormat": "xml"}, {"valueFormat": "json"}),
    ("…=…: expected …", read, {"columns": "value,value"}, {"columns": "value"}),
    ("…=…: expected …", read, {"metadata.url": "localhost:2181"}, {"metadata.url": "zk:localhost:2181"}),
    ("…=…: expected …", read, {"startingTimestamp": "today"}, _DUE),
    ("…=…: expected …", read_without_topic, {"topicsPattern": "a("}, {"topicsPattern": "a.*"}),
    ("…=…: expected …", read_without_topic, {"topicsPattern": "a/b"}, {"topicsPattern": "a/b/c"}),
    ("…=…: expected …", read_without_topic, {"topics": "[1"}, {"topics": '["t"]'}),
    ("…=…: expected …", write, {"pulsar.producer.sendTimeoutMs": "x"}, {"pulsar.producer.sendTimeoutMs": "1"}),
    ("…=…: expected …", write, {"service.url": "localhost:6650"}, {"service.url": "pulsar://localhost:6650"}),
    ("metadata.url=…: that is the brokers' address", read, {"metadata.url": "pulsar://a:6650"}, {}),
    ("metadata.url=…: that is the brokers' address", read, {"metadata.url": "http://a:8080"}, {}),
    ("service.url=…: that is the metadata store", write, {"service.url": "zk:a:2181"}, {}),
    ("no metadata.url: set it", read, {"metadata.url": ""}, {}),
    ("no topic: set option topic, or topics", read_without_topic, {}, {"topic": "t"}),
    ("no service.url", write, {"service.url": ""}, {}),
    ("subscription needs service.url", stream, {"subscription": "s"},
     {"subscription": "s", "service.url": "pulsar://a:6650"}),
    ("topic …; a topic is called NAME", read, {"topic": "a/b"}, {"topic": "a/b/c"}),
    ("topic …: only persistent topics have ledgers", read, {"topic": "non-persistent://a/b/c"}, {}),
    ("topic … is a partition of …, which is read, too", read_without_topic, {"topics": "t,t-partition-1"},
     {"topics": "t"}),
    ("encrypted=raw passes values as they are", read, {"encrypted": "raw", "valueFormat": "json"},
     {"encrypted": "raw", "valueFormat": "binary"}),
    ("minPartitions=… is more than maxPartitions=…", read, {"minPartitions": "5", "maxPartitions": "4"},
     {"minPartitions": "4", "maxPartitions": "4"}),
    ("compacted=true reads the last message of each key of a whole topic", read,
     {"compacted": "true", "startingOffsets": '{"t": {"0": "1:2"}}'}, {"compacted": "true"}),
    ("…=…: a batch read starts at earliest and ends at latest", read, {"startingOffsets": "latest"},
     {"startingOffsets": "earliest"}),
    ("…: topic … is not among those that are read", read, {"startingOffsets": '{"u": {"0": "1:2"}}'},
     {"startingOffsets": '{"t": {"0": "1:2"}}'}),
    ("…: topic … is not among those that are read", read_without_topic,
     {"topicsPattern": "t.*", "startingOffsets": '{"u": {"0": "1:2"}}'},
     {"topicsPattern": "t.*", "startingOffsets": '{"tt": {"0": "1:2"}}'}),
    ('…: expected … or {"topic": {"0": "ledger:entry"}}', read, {"startingOffsets": "1:2"},
     {"startingOffsets": '{"t": {"0": "1:2"}}'}),
    ("pulsar.client.authPluginClassName=…: expected …", client, {"authpluginclassname": "Token"},
     {"authpluginclassname": _TOKEN, "authparams": "token:x"}),
    ("pulsar.client.… expected …", client, {"authpluginclassname": _TOKEN},
     {"authpluginclassname": _TOKEN, "authparams": "token:x"}),
    ("pulsar.client.… expected …", client, {"authpluginclassname": _BASIC, "authparams": "x"},
     {"authpluginclassname": _BASIC, "authparams": '{"userId": "u", "password": "p"}'}),
    ("pulsar.client.… expected …", client, {"operationtimeoutms": "1s"}, {"operationtimeoutms": "1000"}),
    ("pulsar.client.… expected …", client, {"tlstrustcertsfilepath": "/nowhere/ca.crt"},
     {"tlstrustcertsfilepath": __file__}),
]  # fmt: skip


def _register(says: str) -> None:
    @case(says)
    async def parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        found = []
        for _, parse, wrong, right in [one for one in WRONG if one[0] == says]:
            with refused() as texts:
                parse(wrong)
            parse(right)
            found += texts
        assert all(pattern(says).search(text) for text in found)
        return found[:1]


for each in dict.fromkeys(says for says, _, _, _ in WRONG):
    _register(each)


@case("offsets for partition … of …, which has …")
async def offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        handle = await world.ledger(numbered(0, 3))
        await world.topic("t", handle)
        with refused() as texts:
            await world.values("t", startingOffsets=f'{{"t": {{"0": "{handle.ledger_id}:1", "3": "1:1"}}}}')
        assert len(await world.values("t", startingOffsets=f'{{"t": {{"0": "{handle.ledger_id}:1"}}}}')) == 2
        return texts


@case("…: ledger … was never one of …")
async def strange_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        handle = await world.ledger(numbered(0, 3))
        await world.topic("t", handle)
        with refused() as texts:
            await world.values("t", startingOffsets=f'{{"t": {{"0": "{handle.ledger_id + 7}:0"}}}}')
        (row, *_) = await world.rows("t", columns="__ledgerId,__entryId")
        place = f'{{"t": {{"0": "{row["__ledgerId"]}:{row["__entryId"]}"}}}}'
        assert await world.values("t", startingOffsets=place) == in_order(0, 3)
        assert await world.values("t", startingTimestamp="1970-01-01") == in_order(0, 3)
        return texts


@case("ledgersRoot=…, but metadata.url=… names …")
async def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await world.topic("t")
        options = {"metadata.url": "zk://nobody:2181/other", "topic": "t"}

        async def opened(url: str, clock: Clock) -> MetadataStore:
            return await open_store(world.url, clock, read_only=True)

        monkeypatch.setattr(cluster, "_open_store", opened)
        with refused() as texts:
            await asyncio.to_thread(reader_of, {**options, "ledgersRoot": "/ledgers"})
        await asyncio.to_thread(reader_of, options)
        return texts
