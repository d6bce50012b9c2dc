"""A few rounds of `make soak`'s with tables of a lake: Spark's process is killed at each kind of moment, once."""

from pathlib import Path

import pytest

from tests.soak.lake.rounds import MOMENTS, moments, rounds
from tests.support.lakehouse import needed

pytestmark = [pytest.mark.spark, pytest.mark.process]


@pytest.mark.long("PySpark 4.2 is got, and five times Java starts")
def test_both_tables_hold_each_message_once_whenever_spark_is_killed(tmp_path: Path) -> None:
    needed()
    said: list[str] = []
    rounds(tmp_path, count=len(MOMENTS), seed="1", remark=said.append)
    assert "each once in both tables" in said[-1]


def test_each_round_kills_at_another_moment() -> None:
    assert [sorted(moments("7", 8)[first : first + 4]) for first in (0, 4)] == 2 * [sorted(MOMENTS)]
