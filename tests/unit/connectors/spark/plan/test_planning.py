import pickle

from connectors.spark.plan.planning import LOOK_BACK_ENTRIES, LOOK_BACK_RUNS, Split, TopicRange, plan
from connectors.spark.ranges import Run
from magnetar_core.runtime.types import MIB


def test_nothing_to_read_is_no_task() -> None:
    assert plan([TopicRange("t", 0, ()), TopicRange("t", 1, ())]) == []


def test_small_ledgers_are_packed_into_one_task() -> None:
    runs = tuple(Run(number, 0, 9, MIB) for number in range(100))
    assert plan([TopicRange("t", -1, runs)], target_bytes=128 * MIB) == [Split("t", -1, runs)]


def test_large_ledgers_are_cut_at_entries() -> None:
    splits = plan([TopicRange("t", -1, (Run(5, 0, 999, 1_000_000),))], target_bytes=250_000)
    assert [split.runs for split in splits] == [(Run(5, begin, begin + 249, 250_000),) for begin in range(0, 1000, 250)]
    assert [split.before for split in splits] == [
        (), (Run(5, 0, 249, 250_000),), (Run(5, 0, 499, 500_000),), (Run(5, 0, 749, 750_000),)
    ]  # fmt: skip


def test_a_task_may_end_in_one_ledger_and_the_next_begin_there() -> None:
    runs = (Run(1, 0, 9, 100), Run(2, 0, 9, 100), Run(3, 0, 9, 100))
    splits = plan([TopicRange("t", -1, runs)], target_bytes=150)
    assert [split.runs for split in splits] == [
        (Run(1, 0, 9, 100), Run(2, 0, 4, 50)),
        (Run(2, 5, 9, 50), Run(3, 0, 9, 100)),
    ]


def test_tasks_that_start_together_belong_to_different_partitions() -> None:
    ranges = [TopicRange("t", number, (Run(number, 0, 99, 1_000),)) for number in range(3)]
    splits = plan(ranges, target_bytes=500)
    assert [split.partition for split in splits] == [0, 1, 2, 0, 1, 2]


def test_the_largest_partitions_are_cut_first() -> None:
    ranges = [TopicRange("t", 0, (Run(1, 0, 99, 9_000),)), TopicRange("t", 1, (Run(2, 0, 99, 1_000),))]
    splits = plan(ranges, target_bytes=1 << 40, min_partitions=4)
    assert [split.partition for split in splits] == [0, 1, 0, 0]


def test_there_are_no_more_tasks_than_entries() -> None:
    splits = plan([TopicRange("t", -1, (Run(1, 0, 1, 10), Run(2, 4, 4, 10)))], min_partitions=50, max_partitions=50)
    assert [split.runs for split in splits] == [(Run(1, 0, 0, 5),), (Run(1, 1, 1, 5),), (Run(2, 4, 4, 10),)]


def test_the_limit_of_tasks_holds_but_for_partitions() -> None:
    one = [TopicRange("t", -1, (Run(1, 0, 999, 1_000),))]
    assert len(plan(one, target_bytes=1, max_partitions=7)) == 7
    many = [TopicRange("t", number, (Run(number, 0, 999, 1_000),)) for number in range(9)]
    assert len(plan(many, target_bytes=1, max_partitions=7)) == 9


def test_what_a_task_carries_of_the_past_is_bounded() -> None:
    runs = tuple(Run(number, 0, LOOK_BACK_ENTRIES // 4, MIB) for number in range(1_000))
    splits = plan([TopicRange("t", -1, runs)], target_bytes=MIB)
    assert len(splits) == 1_000
    for split in splits:
        assert len(split.before) <= LOOK_BACK_RUNS
        assert sum(run.entries for run in split.before) <= LOOK_BACK_ENTRIES
        assert len(pickle.dumps(split)) < 1_000
    assert [split.is_all_before for split in splits] == [True] * 4 + [False] * 996
    (split,) = plan([TopicRange("t", -1, runs[1:2], runs[:1])])
    assert (split.before, split.is_all_before) == (runs[:1], True)
