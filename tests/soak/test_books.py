"""The checks of a soak find each kind of mistake, put into the clients' events."""

import pytest

from tests.soak import memory
from tests.soak.books import KEYS, Given, Place, Problems, Published, check_stored, runs
from tests.soak.schedule import AWAY_MAX, Fault, draw_round


def fed(kind: str, lines: list[str]) -> tuple[Given, Problems]:
    book, problems = Given("s", kind, (0,), keyed_partitions=(0,)), Problems()
    for line in lines:
        book.feed(line, problems)
    return book, problems


def given(*numbers: int) -> list[str]:
    return [f"G 0 {number} {1 + number // 20} {number % 20} -1" for number in numbers]


def test_a_reader_in_sequence_is_right() -> None:
    book, problems = fed("reader", [*given(0, 1, 2), "# anything", "J 0 1", *given(1, 2, 3)])
    assert not problems.texts
    assert (book.count, book.repeated) == (4, 2)


@pytest.mark.parametrize(
    ("kind", "numbers", "told"),
    [
        ("reader", (0, 1, 3), "passed over 2 … 3"),
        ("reader", (0, 1, 1), "was given again from 2 … 1"),
        ("ordered", (0, 1, 4), "2 … 3 passed over"),
        (
            "keyed",
            (0, 1, 2 * KEYS),
            f"entry_id=12, batch_index=-1) came before {KEYS}",
        ),
    ],
)
def test_what_is_passed_over_is_told(kind: str, numbers: tuple[int, ...], told: str) -> None:
    _, problems = fed(kind, given(*numbers))
    assert problems.count == 1
    assert told in problems.texts[0]


@pytest.mark.parametrize("kind", ["ordered", "keyed", "shared"])
def test_what_was_given_may_come_again(kind: str) -> None:
    book, problems = fed(kind, given(*range(40), *range(10, 40), 40))
    assert not problems.texts
    assert book.repeated == 30


def test_shared_consumers_get_everything_in_any_order() -> None:
    book, problems = fed("shared", given(5, 3, 0, 4, 1))
    assert not problems.texts
    assert book.missing({0: 6}) == {0: [2]}
    assert book.missing({0: 8}) == {0: [2, 6, 7]}


def test_messages_of_another_partition_are_told() -> None:
    _, problems = fed("shared", ["G 7 0 1 0 -1"])
    assert problems.count == 1


def published(*lines: str) -> tuple[Published, Problems]:
    book, problems = Published(0), Problems()
    for line in lines:
        book.feed(line, problems)
    return book, problems


def test_a_message_without_a_confirmation_is_pending() -> None:
    book, _ = published("S 0", "S 1", "A 0 1 0 -1")
    assert book.pending == 1


def test_a_message_confirmed_at_two_places_is_told() -> None:
    _, problems = published("S 0", "A 0 1 0 -1", "A 0 -1 -1 -1", "A 0 1 1 -1")
    assert problems.count == 1


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ([(0, Place(1, 0, -1))], "does not find 1"),
        ([(0, Place(1, 0, -1)), (1, Place(1, 1, -1)), (0, Place(1, 2, -1))], "stored twice"),
        ([(1, Place(1, 1, -1)), (0, Place(1, 0, -1))], "stored behind"),
        ([(0, Place(1, 0, -1)), (1, Place(2, 1, -1))], "was confirmed at"),
    ],
)
def test_what_is_stored_otherwise_than_confirmed_is_told(stored: list[tuple[int, Place]], told: str) -> None:
    book, problems = published("S 0", "A 0 1 0 -1", "S 1", "A 1 1 1 -1")
    check_stored(0, stored, book, problems)
    assert problems.count == 1
    assert told in problems.texts[0]


def test_what_is_stored_as_confirmed_is_right() -> None:
    book, problems = published("S 0", "A 0 1 0 -1", "S 1", "A 1 -1 -1 -1")
    assert check_stored(0, [(0, Place(1, 0, -1)), (1, Place(1, 1, -1))], book, problems)[1] == Place(1, 1, -1)
    assert not problems.texts


def test_runs_are_bounded() -> None:
    assert runs(iter([1, 2, 3, 7])) == "1-3, 7"
    assert runs(iter(range(0, 100, 2))).endswith("38 and 30 more runs")


def test_problems_are_bounded() -> None:
    problems = Problems()
    for number in range(1_000):
        problems.tell(str(number))
    assert (problems.count, len(problems.texts)) == (1_000, 20)


# -- memory


def test_a_server_that_grows_is_told() -> None:
    mib = 1 << 20
    rounds = [{("broker-1", 7): size * mib} for size in (90, 100, 110, 120, 140, 200)]
    assert memory.problems(rounds, {}) == [
        "broker-1 (pid 7) held 100 MiB after the first rounds and 200 at the end; 149 are allowed"
    ]
    assert not memory.problems(rounds[:-1], {})
    assert not memory.problems([*rounds[:-1], {("broker-1", 8): 200 * mib}], {})  # another life
    assert memory.table(rounds) == ["broker-1  90 100 110 120 140 200"]


def test_a_server_that_held_too_much_for_a_moment_is_told() -> None:
    assert memory.problems([], {("bookie-2", 9): memory.RESIDENT_MAX + 1}) == [
        "bookie-2 (pid 9) held 600 MiB; 600 are allowed"
    ]


# -- the plan


def test_a_seed_repeats_the_plan() -> None:
    for number in range(1, 20):
        plan = draw_round("7", number, 45.0, small_disk="bookie-4")
        assert plan == draw_round("7", number, 45.0, small_disk="bookie-4")
        assert plan != draw_round("8", number, 45.0, small_disk="bookie-4")


def test_a_plan_leaves_some_servers_and_the_first_ones_alone() -> None:
    kinds = set()
    for number in range(1, 300):
        faults = draw_round("7", number, 45.0, small_disk="bookie-4").faults
        kinds |= {fault.kind for fault in faults}
        for fault in faults:
            away = [other for other in faults if other.at_s <= fault.at_s < other.at_s + other.for_s]
            assert len(away) <= AWAY_MAX
            assert len({other.target for other in away}) == len(away)
            assert not (fault.target in ("broker-1", "bookie-1") and fault.kind in ("kill -9", "restart"))
    assert len(kinds) == 10


def test_without_a_small_disk_it_is_not_filled_and_all_else_stays() -> None:
    for number in range(1, 100):
        with_disk = draw_round("7", number, 45.0, small_disk="bookie-4").faults
        without = draw_round("7", number, 45.0, small_disk=None).faults
        assert not [fault for fault in without if fault.kind.startswith("fill")]
        if not [fault for fault in with_disk if fault.kind.startswith("fill")]:
            assert with_disk == without


def test_a_fault_reads_as_a_sentence() -> None:
    assert str(Fault(3.5, "kill -9", "broker-2", 2.5)) == "   3.5 s  kill -9 broker-2 for 2.5 s"
