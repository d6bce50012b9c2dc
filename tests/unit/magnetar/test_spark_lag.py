"""`magnetar.spark.lag`: what a query's progress says of topics."""

import json
from typing import Any, NamedTuple, cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from magnetar.spark import Lag, lag

TOPICS = {"origin": {}, "topics": {"persistent://public/default/t": {"0": "5:3"}}, "version": 1}


class Progress(NamedTuple):
    json: str


class Query(NamedTuple):
    """What is asked of a query."""

    lastProgress: Progress | None


def behind(messages: int, size_bytes: int, seconds: float) -> dict[str, Any]:
    return {"behind": {"bytes": size_bytes, "messages": messages, "seconds": seconds}, **TOPICS}


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        (None, None),
        ([], None),
        ([None], None),
        ([7], None),
        ([TOPICS], None),
        ([behind(3, 40, 1.5)], Lag(3, 40, 1.5)),
        ([behind(3, 40, 1.5), {"t": {"0": 7}}, behind(4, 2, 0.5)], Lag(7, 42, 1.5)),
    ],
)
def test_the_lag_of_a_query_is_that_of_its_topics_together(newest: list[Any] | None, expected: Lag | None) -> None:
    sources = [{"latestOffset": one} for one in newest or ()]
    progress = None if newest is None else Progress(json.dumps({"sources": sources}))
    assert lag(cast(StreamingQuery, Query(progress))) == expected
