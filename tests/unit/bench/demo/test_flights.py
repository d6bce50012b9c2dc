"""What the demo sends, and what it compares the table of Spark with."""

import io
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest

from bench.demo.flights import INTEGERS, SCHEMA, TEXTS, Acknowledged, Delays, EncodedSchema, Row, Source
from tests.support.manual_clock import ManualClock


def row(number: int, carrier: str, arr_delay: int | None) -> Row:
    made: Row = {"row": number, **dict.fromkeys(INTEGERS, number), **dict.fromkeys(TEXTS, "x")}
    return made | {"carrier": carrier, "arr_delay": arr_delay}


def test_each_row_is_encoded_once_and_counted_for_its_carrier() -> None:
    rows = [row(0, "UA", 10), row(1, "AA", None), row(2, "UA", -4), row(3, "UA", None)]
    source = Source()
    source.add(rows)
    schema = fastavro.parse_schema(SCHEMA)
    assert [fastavro.schemaless_reader(io.BytesIO(one.value), schema, None) for one in source.flights] == rows
    assert [one.carrier for one in source.flights] == ["UA", "AA", "UA", "UA"]
    assert source.delays == {"UA": Delays(3, 2, 6), "AA": Delays(1, 0, 0)}
    assert [source.delays[carrier].mean_minutes for carrier in ("UA", "AA")] == [3.0, 0.0]
    assert EncodedSchema(None, schema_definition=SCHEMA).encode(source.flights[0].value) is source.flights[0].value


def result(name: str) -> Any:
    return f"pulsar.Result.{name}"


def test_answers_are_counted_and_the_longest_gap_of_one_partition_is_told() -> None:
    clock = ManualClock()
    acknowledged = Acknowledged(clock)

    def answer(partition: int, after_s: float, name: str = "Ok") -> None:
        clock.advance(after_s)
        acknowledged(result(name), SimpleNamespace(partition=lambda: partition))

    answer(0, 9.0)
    acknowledged.watch(1)
    for partition, after_s in ((1, 0.5), (0, 3.0), (1, 0.5), (1, 0.25)):
        answer(partition, after_s)
    answer(1, 5.0, "Timeout")
    assert acknowledged.longest_gap_s() == pytest.approx(3.5)
    acknowledged.watch(0)
    answer(1, 7.0)
    assert acknowledged.longest_gap_s() == 0.0
    assert (acknowledged.count, acknowledged.by_partition) == (6, {0: 2, 1: 4})
    assert acknowledged.failures == {"pulsar.Result.Timeout": 1}
