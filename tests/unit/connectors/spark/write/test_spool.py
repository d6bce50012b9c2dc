"""Rows that wait: in memory within a budget for the whole task, the rest in one file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.options.write import HELD_BYTES, parse_write_options
from connectors.spark.write.message import Outgoing, size_of
from connectors.spark.write.room import Room
from connectors.spark.write.spool import SpillFile, Spool
from magnetar_core.runtime.types import MIB, ConfigurationError


def row(number: int) -> Outgoing:
    return Outgoing("t", b"%d" % number, "key", number, {"a": "b"})


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "append", "append", "spill", "clear"]), st.integers(0, 2)), max_size=60
    )
)
def test_spools_of_one_file_give_their_rows_back_in_order(steps: list[tuple[str, int]]) -> None:
    file = SpillFile()
    spools = [Spool(file) for _ in range(3)]
    expected: list[list[Outgoing]] = [[], [], []]
    for number, (step, place) in enumerate(steps):
        if step == "append":
            spools[place].append(row(number))
            expected[place].append(row(number))
        elif step == "spill":
            spools[place].spill()
            assert spools[place].memory_bytes == 0
        else:
            spools[place].clear()
            expected[place].clear()
        for spool, rows in zip(spools, expected, strict=True):
            assert spool.last == (rows[-1] if rows else None)
    assert [list(spool) for spool in spools] == expected
    for spool in spools:
        spool.clear()
        assert (list(spool), spool.memory_bytes) == ([], 0)
    assert file.size_bytes == 0, "what nobody needs is given back to the disk"
    file.close()


def test_rows_that_are_not_spilled_make_no_file_and_are_counted() -> None:
    file = SpillFile()
    spool = Spool(file)
    spool.append(row(1))
    spool.append(row(2))
    assert spool.memory_bytes == size_of(row(1)) + size_of(row(2))
    assert file.size_bytes == 0
    spool.spill()
    assert file.size_bytes > 0


def test_the_largest_gives_up_its_own_first() -> None:
    room = Room(10)
    for name, size_bytes in (("a", 4), ("b", 6)):
        room.set(name, size_bytes)
    found = [room.too_large]  # the budget itself may be used
    for name, size_bytes in (("a", 5), ("b", 0), ("c", 11)):
        room.set(name, size_bytes)
        found.append(room.too_large)
    assert found == [None, "b", None, "c"]
    assert (room.used_bytes, room.most_bytes) == (16, 16)


def test_the_budget_is_an_option_of_the_write() -> None:
    def held(**options: str) -> int:
        return parse_write_options({"service.url": "pulsar://h:6650", "topic": "t", **options}).held_bytes

    assert held() == HELD_BYTES
    assert held(deduplication="true", deduplicationHeldBytes="2m") == 2 * MIB
    with pytest.raises(ConfigurationError, match=r"deduplicationHeldBytes=100k: expected at least 1m"):
        held(deduplication="true", deduplicationHeldBytes="100k")
    with pytest.raises(ConfigurationError, match=r"deduplicationHeldBytes=much: expected a size such as 128m"):
        held(deduplication="true", deduplicationHeldBytes="much")
