"""Tasks against the set of entries that they are made of."""

from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.plan.planning import LOOK_BACK_ENTRIES, LOOK_BACK_RUNS, TopicRange, clip, pieces, plan
from connectors.spark.ranges import Position, Run


@st.composite
def runs(draw: st.DrawFn) -> tuple[Run, ...]:
    ledgers = sorted(draw(st.sets(st.integers(0, 20), max_size=6)))
    made = []
    for ledger_id in ledgers:
        first = draw(st.integers(0, 3))
        entries = draw(st.sampled_from([1, 2, 3, 10, 100]))
        made.append(Run(ledger_id, first, first + entries - 1, draw(st.integers(1, 5_000))))
    return tuple(made)


def entries_of(found: tuple[Run, ...]) -> list[Position]:
    return [(run.ledger_id, entry_id) for run in found for entry_id in range(run.first, run.last + 1)]


positions = st.none() | st.tuples(st.integers(0, 21), st.integers(0, 110))


@given(runs(), positions, positions)
def test_clipping_keeps_what_stands_between_the_positions(
    found: tuple[Run, ...], start: Position | None, end: Position | None
) -> None:
    kept, earlier = clip(found, start, end)
    everything = entries_of(found)
    from_start = [entry for entry in everything if start is None or entry >= start]
    assert entries_of(kept) == [entry for entry in from_start if end is None or entry < end]
    assert entries_of(earlier) == [entry for entry in everything if start is not None and entry < start]


@given(st.lists(runs(), max_size=5), st.integers(1, 6_000), st.integers(1, 30), st.integers(0, 30))
def test_every_entry_is_in_exactly_one_task(
    topics: list[tuple[Run, ...]], target_bytes: int, minimum: int, more: int
) -> None:
    ranges = [TopicRange(f"t{number}", number, found) for number, found in enumerate(topics)]
    splits = plan(ranges, target_bytes=target_bytes, min_partitions=minimum, max_partitions=minimum + more)
    total = sum(topic.entries for topic in ranges)
    filled = sum(1 for topic in ranges if topic.runs)
    assert all(split.runs for split in splits)
    assert min(minimum, total) <= len(splits) <= max(minimum + more, filled)
    for topic in ranges:
        own = [split for split in splits if split.topic == topic.topic]
        assert [entry for split in own for entry in entries_of(split.runs)] == entries_of(topic.runs)
        for split in own:
            before = entries_of(topic.runs)[: entries_of(topic.runs).index(entries_of(split.runs)[0])]
            looked_at = entries_of(split.before)
            assert looked_at == before[len(before) - len(looked_at) :]
            assert len(split.before) <= LOOK_BACK_RUNS
            assert len(looked_at) <= LOOK_BACK_ENTRIES
            assert split.is_all_before == (looked_at == before)
            assert looked_at or not before


@given(runs(), st.integers(1, 20))
def test_tasks_are_of_about_the_same_size(found: tuple[Run, ...], count: int) -> None:
    splits = plan([TopicRange("t", -1, found)], target_bytes=1 << 40, min_partitions=count)
    if not splits:
        return
    sizes = [sum(run.size_bytes for run in split.runs) for split in splits]
    largest_entry = max(run.size_bytes / run.entries for run in found)
    # A cut is at most half an entry away from the exact place, and is moved where a task would have no entry.
    assert max(sizes) <= sum(sizes) / len(sizes) + len(splits) * largest_entry + len(found)


@given(runs(), st.data(), st.sampled_from([0, 50, 1_000, 10_000]))
def test_pieces_hold_what_is_kept_and_know_what_stands_before_them(
    found: tuple[Run, ...], data: st.DataObject, gap: int
) -> None:
    everything = entries_of(found)
    wanted = sorted(data.draw(st.sets(st.sampled_from(everything)))) if everything else []
    kept = [run.part(entry, entry) for run in found for ledger, entry in wanted if ledger == run.ledger_id]
    made = pieces(TopicRange("t", 3, found), kept, gap)
    read = [entry for piece in made for entry in entries_of(piece.runs)]
    assert sorted(set(read)) == read, "nothing twice, in order"
    assert set(wanted) <= set(read)
    if gap == 0 and all(run.size_bytes >= run.entries for run in found):
        assert read == wanted, "without a gap that is worth it nothing else is read"
    for piece in made:
        own, before = entries_of(piece.runs), entries_of(piece.before)
        first = everything.index(own[0])
        assert own == everything[first : first + len(own)], "no holes"
        assert own[0] in wanted
        assert own[-1] in wanted
        assert before == everything[first - len(before) : first]
        assert len(before) == first or len(piece.before) > LOOK_BACK_RUNS
