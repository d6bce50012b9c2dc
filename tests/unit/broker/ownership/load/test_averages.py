"""Averages of bundles and brokers, against what Apache's classes of 4.0.8 wrote for the same samples."""

import json

import pytest

from broker.ownership.load.averages import (
    Average,
    BundleAverages,
    busiest,
    decode_bundle,
    encode_broker,
    encode_bundle,
    loads_of_bundles,
)
from broker.ownership.load.report import BrokerLoad, BundleLoad

SAMPLE = BundleLoad(messages_in=100.0, bytes_in=2000.0, messages_out=3.0, bytes_out=30.0, topics=7)

NEW = (
    '{"shortTermData":{"maxSamples":10,"numSamples":0,"msgThroughputIn":50000.0,"msgThroughputOut":50000.0,'
    '"msgRateIn":50.0,"msgRateOut":50.0},"longTermData":{"maxSamples":1000,"numSamples":0,"msgThroughputIn":50000.0,'
    '"msgThroughputOut":50000.0,"msgRateIn":50.0,"msgRateOut":50.0},"topics":0}'
)
AFTER_13 = (
    '{"shortTermData":{"maxSamples":10,"numSamples":10,"msgThroughputIn":2000.0,"msgThroughputOut":30.0,'
    '"msgRateIn":100.0,"msgRateOut":3.0},"longTermData":{"maxSamples":1000,"numSamples":13,"msgThroughputIn":2000.0,'
    '"msgThroughputOut":30.0,"msgRateIn":100.0,"msgRateOut":3.0},"topics":7}'
)
BROKER = (
    '{"shortTermMsgThroughputIn":52000.0,"shortTermMsgThroughputOut":50030.0,"shortTermMsgRateIn":150.0,'
    '"shortTermMsgRateOut":53.0,"longTermMsgThroughputIn":52000.0,"longTermMsgThroughputOut":50030.0,'
    '"longTermMsgRateIn":150.0,"longTermMsgRateOut":53.0}'
)


def text(record: object) -> str:
    return json.dumps(record, separators=(",", ":"))


def after(samples: int, load: BundleLoad = SAMPLE) -> BundleAverages:
    found = BundleAverages()
    for _ in range(samples):
        found = found.with_sample(load)
    return found


def test_the_records_are_those_of_apache() -> None:
    assert text(encode_bundle(BundleAverages())) == NEW
    assert text(encode_bundle(after(13))) == AFTER_13
    assert text(encode_broker(["x", "y"], {"x": after(13)})) == BROKER


def test_a_sample_counts_less_the_more_there_were() -> None:
    two = after(1).with_sample(BundleLoad(bytes_in=0.0))
    assert two.short.bytes_in == two.long.bytes_in == 1000.0
    full = after(2000).with_sample(BundleLoad(bytes_in=0.0))
    assert full.short.bytes_in == pytest.approx(2000 * 9 / 10)
    assert full.long.bytes_in == pytest.approx(2000 * 999 / 1000)
    assert (full.short.samples, full.long.samples) == (10, 1000)


def test_what_was_written_is_read_again() -> None:
    found = after(13)
    assert decode_bundle(encode_bundle(found)) == found


@pytest.mark.parametrize(
    "record", [{}, {"shortTermData": 1, "longTermData": {}, "topics": 0}, json.loads(NEW) | {"topics": "x"}]
)
def test_a_record_that_cannot_be_understood_counts_as_nothing_known(record: dict[str, object]) -> None:
    assert decode_bundle(record) == BundleAverages()


def test_only_the_busiest_bundles_are_written() -> None:
    averages = {f"b{number:02}": BundleAverages(long=Average(1, bytes_in=number)) for number in range(15)}
    assert busiest(averages, 10) == [f"b{number:02}" for number in reversed(range(5, 15))]
    assert len(busiest(averages, -1)) == 15, "-1 is all"


def test_of_two_reports_of_a_bundle_the_later_one_counts() -> None:
    old, new = BundleLoad(bytes_in=1.0), BundleLoad(bytes_in=2.0)
    loads = {"a": BrokerLoad(bundles={"n/b": new}, at_ms=2), "b": BrokerLoad(bundles={"n/b": old}, at_ms=1)}
    assert loads_of_bundles(loads) == {"n/b": new}
