"""The choice of bookies in regions against its definition, written slowly: every choice there is, judged entry by
entry."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar_core.bookkeeper.client.errors import NotEnoughBookies
from magnetar_core.bookkeeper.client.placing.ensembles import choose_ensemble, choose_moves, choose_replacements
from magnetar_core.bookkeeper.client.placing.regions import DEFAULT_RACK, RegionRules, shares
from magnetar_core.bookkeeper.client.placing.topology import Location, Topology

PLACES = ("/eu/one", "/eu/two", "/us/one", "/us/two", "/asia/one", DEFAULT_RACK)


def cluster(racks: Sequence[str], rules: RegionRules | None = None) -> Topology:
    """Bookies `b0`, `b1`, …, each in its rack and on a host of its own."""
    located = {f"b{at}": Location(rack, f"h{at}") for at, rack in enumerate(racks)}
    return Topology(located, regions=rules or RegionRules())


def holders(ensemble: Sequence[str], write: int) -> Iterator[list[str]]:
    """Who has each entry."""
    for entry_id in range(len(ensemble)):
        yield [ensemble[(entry_id + at) % len(ensemble)] for at in range(write)]


def region(topology: Topology, bookie: str) -> str:
    rack = topology.of(bookie).rack
    return "nowhere" if rack == DEFAULT_RACK else rack.split("/")[1]


def is_even(topology: Topology, ensemble: Sequence[str], write: int, everybody: Sequence[str]) -> bool:
    """The definition: the copies of each entry are in as many regions as there are, or as there are copies, and none
    has more of them than its share, rounded up."""
    regions = {region(topology, one) for one in everybody}
    for having in holders(ensemble, write):
        counts = Counter(region(topology, one) for one in having)
        if len(counts) < min(write, len(regions)):
            return False
        # Written without division: if each region took one less than this one has, all copies would have a place.
        if max(counts.values()) > 1 and (max(counts.values()) - 1) * len(regions) >= write:
            return False
    return True


def is_durable(topology: Topology, ensemble: Sequence[str], write: int, ack: int, durable: int) -> bool:
    """The definition: whoever acknowledges an entry, it is in enough regions."""
    return all(
        len({region(topology, one) for one in acknowledging}) >= durable
        for having in holders(ensemble, write)
        for acknowledging in combinations(having, ack)
    )


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_an_ensemble_is_even_over_regions_and_racks_where_one_is(data: st.DataObject) -> None:
    topology = cluster(data.draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=6)))
    names = sorted(topology.locations)
    size = data.draw(st.integers(1, min(len(names), 4)))
    write = data.draw(st.integers(1, size))
    chosen = choose_ensemble(
        names, size, (), random.Random(data.draw(st.integers())), write_quorum=write, topology=topology
    )
    assert len(set(chosen)) == size
    every = list(permutations(names, size))
    assert is_even(topology, chosen, write, names) == any(is_even(topology, one, write, names) for one in every)
    whole = [one for one in every if topology.is_adhering(one, write, names)]
    assert all(is_even(topology, one, write, names) for one in whole)
    assert topology.is_adhering(chosen, write, names) == bool(whole)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_where_durability_is_asked_for_there_is_a_durable_ensemble_or_none(data: st.DataObject) -> None:
    durable = data.draw(st.integers(1, 3))
    topology = cluster(data.draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=6)), RegionRules(durable))
    names = sorted(topology.locations)
    size = data.draw(st.integers(1, min(len(names), 5)))
    write = data.draw(st.integers(1, size))
    ack = data.draw(st.integers(1, write))
    rng = random.Random(data.draw(st.integers()))
    every = permutations(names, size)
    if any(is_durable(topology, one, write, ack, durable) for one in every):
        chosen = choose_ensemble(names, size, (), rng, write_quorum=write, ack_quorum=ack, topology=topology)
        assert is_durable(topology, chosen, write, ack, durable)
    else:
        with pytest.raises(NotEnoughBookies):
            choose_ensemble(names, size, (), rng, write_quorum=write, ack_quorum=ack, topology=topology)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_replacement_leaves_each_window_durable_that_was(data: st.DataObject) -> None:
    durable = data.draw(st.integers(2, 3))
    binds = data.draw(st.booleans())
    topology = cluster(
        data.draw(st.lists(st.sampled_from(PLACES), min_size=4, max_size=7)), RegionRules(durable, binds)
    )
    names = sorted(topology.locations)
    size = data.draw(st.integers(2, 4))
    write = data.draw(st.integers(2, size))
    ack = data.draw(st.integers(1, write))
    ensemble = tuple(names[:size])
    failed = {at: ensemble[at] for at in data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=2))}
    rng = random.Random(data.draw(st.integers()))
    found = choose_replacements(
        names, ensemble, failed, (), (), rng, write_quorum=write, ack_quorum=ack, topology=topology
    )
    rest = names[size:]

    def keeps(after: Sequence[str]) -> bool:
        before = [is_durable(topology, one, write, ack, durable) for one in holders(ensemble, write)]
        now = [is_durable(topology, one, write, ack, durable) for one in holders(after, write)]
        return all(new or not old for old, new in zip(before, now, strict=True))

    if len(rest) < len(failed):
        return
    options = [
        tuple(dict(zip(failed, drawn, strict=True)).get(at, one) for at, one in enumerate(ensemble))
        for drawn in permutations(rest, len(failed))
    ]
    after = tuple(found.get(at, one) for at, one in enumerate(ensemble))
    if not binds:
        assert len(found) == len(failed)
    elif any(keeps(one) for one in options):
        assert len(found) == len(failed)
        assert keeps(after)
    else:
        assert found == {}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_moves_make_an_ensemble_even_where_they_can(data: st.DataObject) -> None:
    topology = cluster(data.draw(st.lists(st.sampled_from(PLACES), min_size=3, max_size=6)))
    names = sorted(topology.locations)
    ensemble = tuple(names[:3])
    write = data.draw(st.integers(1, 3))
    rng = random.Random(data.draw(st.integers()))
    moves = choose_moves(names, ensemble, (), (), rng, write_quorum=write, topology=topology)
    after = tuple(moves.get(at, one) for at, one in enumerate(ensemble))
    before = topology.deficit(ensemble, write, names)
    assert topology.deficit(after, write, names) < before if moves else after == ensemble
    options = [
        one
        for one in permutations(names, 3)
        if all(new == old or new in names[3:] for new, old in zip(one, ensemble, strict=True))
    ]
    assert topology.is_adhering(after, write, names) == any(topology.is_adhering(one, write, names) for one in options)


def test_a_quorum_is_refused_exactly_where_even_copies_can_be_lost_with_too_few_regions() -> None:
    for durable in range(1, 6):
        for write in range(1, 10):
            for ack in range(1, write + 1):
                even = [at for at, share in enumerate(shares(write, durable)) for _ in range(share)]
                spans = all(len(set(one)) >= durable for one in combinations(even, ack))
                assert (RegionRules(durable).quorum_problem(write, ack) is None) == spans, (durable, write, ack)


@pytest.mark.parametrize("seed", range(30))
def test_in_a_cluster_of_some_size_what_was_built_to_fit_is_found(seed: int) -> None:
    """A cluster with exactly the bookies of an ensemble that keeps to everything, or to durability."""
    rng = random.Random(seed)
    size = rng.randint(2, 8)
    write = rng.randint(1, min(size, 5))
    ack = rng.randint(1, write)
    places = [f"/r{at % rng.randint(1, 3)}/k{rng.randint(0, 2)}" for at in range(write + rng.randint(0, 5))]
    names = [f"b{at}" for at in range(size)]
    for _ in range(300):
        topology = cluster([rng.choice(places) for _ in range(size)], RegionRules(2))
        if topology.is_adhering(names, write, names):
            chosen = choose_ensemble(names, size, (), rng, write_quorum=write, topology=topology)
            assert topology.is_adhering(chosen, write, names)
        if is_durable(topology, names, write, ack, 2):
            chosen = choose_ensemble(names, size, (), rng, write_quorum=write, ack_quorum=ack, topology=topology)
            assert is_durable(topology, chosen, write, ack, 2)
