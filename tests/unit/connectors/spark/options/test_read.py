import re
from pathlib import Path

import pytest

from connectors.spark.options.read import INSTEAD, KNOWN, TABLE, UNPACKED_BYTES, Kind, parse_options, parse_topic
from connectors.spark.options.table import known_names
from connectors.spark.options.write import TABLE as WRITING
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.topics.topic_name import TopicName

BASE = {"metadata.url": "zk:a:2181", "topic": "t"}
T = TopicName("persistent", "public", "default", "t")


def problems_of(**options: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse_options({name.replace("__", "."): value for name, value in options.items()})
    return str(caught.value).splitlines()


def test_names_come_in_lower_case_and_have_aliases() -> None:
    options = parse_options({"metadataserviceuri": "zk:a:2181", "subscribe": "t", "minpartitions": "3"})
    assert (options.metadata_url, options.topics, options.min_partitions) == ("zk:a:2181", (T,), 3)


def test_all_problems_are_told_at_once_in_the_last_line_which_is_what_users_see() -> None:
    problems = problems_of(
        tpic="t", minPartitions="0", targetPartitionBytes="much", failOnDataLoss="maybe", valueFormat="xml",
        includeHeaders="true", startingOffsets="latest", columns="value, value",
    )  # fmt: skip
    told = [
        "unknown option tpic; did you mean topic?",
        "option includeHeaders does not exist here: leave it out: column __messageProperties is always there",
        "minPartitions=0: expected a number of at least 1",
        "targetPartitionBytes=much: expected a size such as 128m",
        "failOnDataLoss=maybe: expected true or false",
        "columns=value, value: expected each once, and value stands there more than once",
        "valueFormat=xml: expected binary, string, avro, json, protobuf, keyvalue or auto",
        "no topic: set option topic, or topics with commas between them",
        "startingOffsets=latest: a batch read starts at earliest and ends at latest, or at given positions",
        "no metadata.url: set it to zk:host:port of the cluster, or rocksdb:DIR of a standalone",
    ]
    assert problems == ["; ".join(told)]


def test_options_for_a_broker_are_taken_and_named_as_unused() -> None:
    assert parse_options({**BASE, "service.url": "pulsar://x", "pulsar.client.authparams": "secret"}).unused == (
        "service.url", "pulsar.client.authparams",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("t", T),
        ("persistent://public/default/t", T),
        ("a/b/c", TopicName("persistent", "a", "b", "c")),
    ],
)
def test_topics_are_named_as_clients_name_them(name: str, topic: TopicName) -> None:
    assert parse_topic(name) == topic


@pytest.mark.parametrize("name", ["persistent://a/c/b/t", "a/c/b/t"])
def test_names_with_a_cluster_are_refused_with_that_reason(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^topic {name}: names with a cluster"):
        parse_topic(name)
    assert "names with a cluster" in problems_of(metadata__url="zk:a", topic=name)[0]


@pytest.mark.parametrize("name", ["a/b", "non-persistent://a/b/c", "a//c", "persistent://a/b", "/a/b", ""])
def test_names_that_are_no_topics_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_topic(name)


def test_one_partition_is_a_topic_of_its_own() -> None:
    part = parse_topic("a/b/t-partition-3")
    assert (part.partition, part.base, T.with_partition(2).partition) == (3, TopicName("persistent", "a", "b", "t"), 2)
    assert (T.partition, T.base) == (-1, T)
    assert parse_topic("t-partition-03").partition == -1
    assert problems_of(metadata__url="zk:a", topics="t,t-partition-1") == [
        "topic persistent://public/default/t-partition-1 is a partition of persistent://public/default/t, "
        "which is read, too"
    ]


def test_a_topic_that_is_named_twice_is_read_once() -> None:
    options = parse_options({"metadata.url": "zk:a", "topics": "t, u, persistent://public/default/t,u"})
    assert options.topics == (T, TopicName("persistent", "public", "default", "u"))


def test_paths_of_load_are_topics() -> None:
    assert parse_options({"metadata.url": "zk:a", "paths": '["t", "a/b/c"]'}).topics == (
        T,
        TopicName("persistent", "a", "b", "c"),
    )
    assert parse_options({"metadata.url": "zk:a", "path": "t"}).topics == (T,)


def test_an_option_given_under_two_names_must_say_the_same() -> None:
    assert parse_options({**BASE, "path": "t"}).topics == (T,)
    assert problems_of(**BASE, path="other") == ["topic and path mean the same and differ"]


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("64k", 65536), ("128M", 128 << 20), ("2 gb", 2 << 30)])
def test_sizes_have_units(text: str, size: int) -> None:
    assert parse_options({**BASE, "targetPartitionBytes": text}).target_bytes == size


@pytest.mark.parametrize("text", ["0", "-1", "1.5m", "m", "1t", "²"])
def test_other_sizes_are_refused(text: str) -> None:
    assert problems_of(**BASE, targetPartitionBytes=text)


@pytest.mark.parametrize("text", ["0", "1048575", "1074790401", "8m"])
def test_frames_are_neither_tiny_nor_larger_than_brokers_take(text: str) -> None:
    assert problems_of(**{**BASE, "bookkeeper.nettyMaxFrameSizeBytes": text})


@pytest.mark.parametrize("text", ["0", "1023k", "513m", "1g", "much"])
def test_what_an_entry_unpacks_to_has_bounds(text: str) -> None:
    assert parse_options({**BASE, "maxUnpackedBytes": "512m"}).unpacked_bytes_max == 512 << 20
    assert parse_options(BASE).unpacked_bytes_max == UNPACKED_BYTES
    assert "maxUnpackedBytes" in problems_of(**BASE, maxUnpackedBytes=text)[0]


def test_more_partitions_at_least_than_at_most_are_refused() -> None:
    assert problems_of(**BASE, minPartitions="5", maxPartitions="4") == ["minPartitions=5 is more than maxPartitions=4"]


def test_offsets_are_positions_by_topic_and_partition() -> None:
    text = '{"persistent://public/default/t": {"0": "12:345", "1": -2, "2": "earliest"}}'
    assert parse_options({**BASE, "startingOffsets": text}).starting == {T: {0: (12, 345)}}
    assert parse_options({**BASE, "endingOffsets": '{"t": {"3": "1:0", "1": -1}}'}).ending == {T: {3: (1, 0)}}
    for text in ("12:345:-1", "12:345:-1:0", "(12,345,-1,0)", "12:345:2"):  # ids as messages show them
        assert parse_options({**BASE, "startingOffsets": f'{{"t": {{"2": "{text}"}}}}'}).starting == {T: {2: (12, 345)}}
    assert parse_options({**BASE, "startingOffsets": "Earliest", "endingOffsets": "latest"}).ending == {}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "3", '{"t": 1}', '{"t": {"0": 5}}', '{"t": {"0": "1:2:3"}}', '{"t": {"x": "1:2"}}',
     '{"u": {"0": "1:2"}}', '{"t": {"0": -1}}', '{"t": {"0": "1:-2"}}', '{"a/b": {"0": "1:2"}}'],
)  # fmt: skip
def test_other_offsets_are_refused(text: str) -> None:
    (problem,) = problems_of(**BASE, startingOffsets=text)
    assert problem.startswith("startingOffsets: ")


@pytest.mark.parametrize("place", ["23", '"23"'])
@pytest.mark.parametrize(
    ("option", "by_time"), [("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")]
)
def test_an_offset_as_kafka_has_them_is_told_from_a_place_and_the_time_is_proposed(
    place: str, option: str, by_time: str
) -> None:
    (problem,) = problems_of(**BASE, **{option: f'{{"t": {{"0": {place}}}}}'})
    assert f"23 is a number, as Kafka's offsets are; {by_time} is the way by time" in problem
    assert "batch index" not in problem


def test_an_offset_in_the_middle_of_a_batch_is_refused_with_those_around_it() -> None:
    (problem,) = problems_of(**BASE, startingOffsets='{"t": {"0": "12:345:-1:3"}}')
    assert "12:345 to begin with it, 12:346 to end behind it" in problem


def test_a_name_of_other_connectors_tells_what_it_is_called_here() -> None:
    (problem,) = problems_of(**BASE, allowdifferenttopicschemas="true")
    assert problem.startswith("option allowDifferentTopicSchemas does not exist here: valueFormat=binary leaves")


def test_united_schemas_need_a_format_that_has_schemas() -> None:
    assert parse_options({**BASE, "unionSchemas": "true", "valueFormat": "auto"}).union_schemas
    assert problems_of(**BASE, unionSchemas="true") == [
        "unionSchemas=true has no meaning for valueFormat=binary; set valueFormat=auto"
    ]


# The options of Kafka's source, as the guide of Spark 4 lists them.
KAFKA = (
    "assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets",
    "failOnDataLoss", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "groupIdPrefix", "kafka.group.id", "includeHeaders", "startingOffsetsByTimestampStrategy",
)  # fmt: skip


def test_the_page_has_every_name_of_every_option() -> None:
    page = (Path(__file__).parents[5] / "docs/spark.md").read_text()
    names = [name for option in (*TABLE, *WRITING) for name in (option.name, *option.also)]
    assert [name for name in names if not re.search(rf"`{name}[`=]", page)] == []


def test_each_option_of_kafkas_source_is_taken_or_names_what_there_is_instead() -> None:
    page = (Path(__file__).parents[5] / "docs/spark.md").read_text()
    table = page.partition("## Moving from Kafka's source\n")[2].partition("Kafka's column")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| ")]
    listed = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    assert listed == set(KAFKA)
    taken = known_names(TABLE)
    for name in KAFKA:
        if name.lower() not in taken:
            (problem,) = problems_of(**BASE, **{name.lower(): "x"})
            assert problem.startswith(f"option {name} does not exist here: ")
            options = set(re.findall(r"\b[a-z]+(?:\.[a-z]\w*|[A-Z]\w*)", INSTEAD[name])) - {"processingTime"}
            assert {option.lower() for option in options} <= {*taken}, "what there is instead is there"
    assert parse_options({"metadata.url": "zk:a", "subscribe": "t, u"}).topics == (T, T.parse("u"))
    assert parse_options({**BASE, "maxoffsetspertrigger": "5"}, Kind.STREAM).max_messages == 5


def test_every_refused_name_is_told_by_name() -> None:
    for name, way in INSTEAD.items():
        assert problems_of(**BASE, **{name.lower(): "x"}) == [f"option {name} does not exist here: {way}"]
    assert not {name.lower() for name in INSTEAD} & {name.lower() for name in KNOWN}
