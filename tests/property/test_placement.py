"""The choice of bookies against its definition, written slowly: every choice there is, judged window by window."""

import random
from collections.abc import Iterator, Sequence
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar_core.bookkeeper.client.errors import NotEnoughBookies
from magnetar_core.bookkeeper.client.placing.ensembles import choose_ensemble, choose_moves, choose_replacements
from magnetar_core.bookkeeper.client.placing.regions import DEFAULT_RACK
from magnetar_core.bookkeeper.client.placing.topology import Location, Topology

RACKS = (DEFAULT_RACK, "/one", "/two", "/three")


def cluster(bookies: Sequence[tuple[str, str]], racks_min: int = 2, *, enforced: bool = False) -> Topology:
    """Bookies `b0`, `b1`, …, each at its (rack, host)."""
    return Topology({f"b{at}": Location(*one) for at, one in enumerate(bookies)}, racks_min, enforced)


def adheres(topology: Topology, ensemble: Sequence[str], write: int, everybody: Sequence[str]) -> bool:
    """The definition: the entries of each number lie on enough racks and hosts."""
    racks = {topology.of(one).rack for one in everybody}
    hosts = {topology.of(one).host for one in everybody}
    is_plain = racks == {DEFAULT_RACK} or (len(racks) == 1 and len(hosts) == 1)
    racks_wanted = 1 if is_plain and not topology.is_enforced else min(write, topology.racks_min)
    for entry_id in range(len(ensemble)):
        holders = [ensemble[(entry_id + at) % len(ensemble)] for at in range(write)]
        its_racks = {topology.of(one).rack for one in holders}
        if topology.is_enforced and DEFAULT_RACK in its_racks:
            return False
        if len(its_racks) < racks_wanted or len({topology.of(one).host for one in holders}) < min(write, len(hosts)):
            return False
    return True


def lacking(topology: Topology, ensemble: Sequence[str], write: int, everybody: Sequence[str]) -> tuple[int, int]:
    demand = topology.demand(everybody, write)
    racks = hosts = 0
    for entry_id in range(len(ensemble) if write < len(ensemble) else 1):
        holders = [topology.of(ensemble[(entry_id + at) % len(ensemble)]) for at in range(write)]
        racks += max(demand.racks - len({one.rack for one in holders}), 0)
        hosts += max(demand.hosts - len({one.host for one in holders}), 0)
    return racks, hosts


def all_clusters() -> Iterator[list[tuple[str, str]]]:
    """Up to three hosts in up to two racks, each with up to two bookies."""
    for racks in product(RACKS[:2], repeat=3):
        for counts in product((0, 1, 2), repeat=3):
            yield [(rack, f"h{at}") for at, rack in enumerate(racks) for _ in range(counts[at])]


def test_every_small_cluster_gets_an_adhering_ensemble_where_there_is_one() -> None:
    rng = random.Random(1)
    for bookies in all_clusters():
        names = [f"b{at}" for at in range(len(bookies))]
        topology = cluster(bookies)
        for size in range(1, min(len(names), 4) + 1):
            every = list(permutations(names, size))
            for write in range(1, size + 1):
                chosen = choose_ensemble(names, size, (), rng, write_quorum=write, topology=topology)
                assert len(set(chosen)) == size
                assert set(chosen) <= set(names)
                possible = any(adheres(topology, one, write, names) for one in every)
                assert adheres(topology, chosen, write, names) == possible, (bookies, size, write)
                assert topology.is_adhering(chosen, write, names) == possible


def test_every_small_cluster_gets_an_adhering_replacement_where_there_is_one() -> None:
    rng = random.Random(2)
    for bookies in all_clusters():
        names = [f"b{at}" for at in range(len(bookies))]
        topology = cluster(bookies)
        for ensemble in permutations(names, 3):
            failed = {1: ensemble[1]}
            rest = [one for one in names if one not in ensemble]
            chosen = choose_replacements(names, ensemble, failed, (), (), rng, write_quorum=2, topology=topology)
            assert bool(chosen) == bool(rest)
            if rest:
                everybody = [*rest, ensemble[0], ensemble[2]]
                options = {one: (ensemble[0], one, ensemble[2]) for one in rest}
                best = min(lacking(topology, one, 2, everybody) for one in options.values())
                assert lacking(topology, options[chosen[1]], 2, everybody) == best
                rack = topology.of(ensemble[1]).rack
                if topology.of(chosen[1]).rack != rack:
                    near = [one for one in rest if topology.of(one).rack == rack]
                    assert all(lacking(topology, options[one], 2, everybody) > best for one in near)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_enforcement_gives_an_ensemble_exactly_where_one_keeps_the_racks(data: st.DataObject) -> None:
    place = st.tuples(st.sampled_from(RACKS), st.sampled_from(("x", "y", "z")))
    bookies = data.draw(st.lists(place, min_size=1, max_size=6))
    names = [f"b{at}" for at in range(len(bookies))]
    size = data.draw(st.integers(1, min(len(names), 4)))
    write = data.draw(st.integers(1, size))
    quarantined = data.draw(st.sets(st.sampled_from(names)))
    topology = cluster(bookies, data.draw(st.integers(1, 3)), enforced=True)
    wanted = min(write, topology.racks_min)

    def keeps(ensemble: Sequence[str]) -> bool:
        racks = [topology.of(one).rack for one in ensemble]
        spans = [{racks[(first + at) % size] for at in range(write)} for first in range(size)]
        return DEFAULT_RACK not in racks and all(len(one) >= wanted for one in spans)

    options = [one for one in permutations(names, size) if keeps(one)]
    rng = random.Random(data.draw(st.integers()))
    if not options:
        with pytest.raises(NotEnoughBookies):
            choose_ensemble(names, size, quarantined, rng, write_quorum=write, topology=topology)
        return
    chosen = choose_ensemble(names, size, quarantined, rng, write_quorum=write, topology=topology)
    assert keeps(chosen)
    fewest = min(len(quarantined.intersection(one)) for one in options)
    assert len(quarantined.intersection(chosen)) == fewest


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_quarantine_counts_more_than_racks_and_members_are_new(data: st.DataObject) -> None:
    place = st.tuples(st.sampled_from(RACKS), st.sampled_from(("x", "y", "z")))
    bookies = data.draw(st.lists(place, min_size=3, max_size=9))
    names = [f"b{at}" for at in range(len(bookies))]
    ensemble = names[:3]
    write = data.draw(st.integers(1, 3))
    failed = {at: ensemble[at] for at in data.draw(st.sets(st.integers(0, 2), min_size=1))}
    away = data.draw(st.sets(st.sampled_from(names)))
    quarantined = data.draw(st.sets(st.sampled_from(names)))
    topology = cluster(bookies)
    rng = random.Random(data.draw(st.integers()))
    found = choose_replacements(names, ensemble, failed, away, quarantined, rng, write_quorum=write, topology=topology)
    rest = set(names[3:]) - away
    assert found.keys() <= failed.keys()
    assert len(found) == len(set(found.values())) == min(len(failed), len(rest))
    assert set(found.values()) <= rest
    assert len(quarantined.intersection(found.values())) == max(len(found) - len(rest - quarantined), 0)


@pytest.mark.parametrize("seed", range(40))
def test_in_a_cluster_of_some_size_what_was_built_to_fit_is_found(seed: int) -> None:
    """A cluster that certainly has an adhering ensemble: exactly that one's bookies, and as many as fit besides."""
    rng = random.Random(seed)
    size = rng.randint(2, 10)
    write = rng.randint(1, min(size, 4))
    hosts = [(f"/r{at % rng.randint(1, 3)}", f"h{at}") for at in range(write + rng.randint(0, 6))]
    for _ in range(1000):
        located = [rng.choice(hosts) for _ in range(size)]
        names = [f"b{at}" for at in range(size)]
        topology = cluster(located)
        if topology.is_adhering(names, write, names):
            break
    else:
        return
    for _ in range(20):
        rng.shuffle(names)
        chosen = choose_ensemble(names, size, (), rng, write_quorum=write, topology=topology)
        assert topology.is_adhering(chosen, write, names)
        assert set(chosen) == set(names)


def test_a_choice_is_random_among_those_that_fit_and_the_same_for_a_seed() -> None:
    topology = cluster([("/one", "a"), ("/one", "b"), ("/two", "c"), ("/two", "d")])
    names = ["b0", "b1", "b2", "b3"]

    def draw(seed: int) -> tuple[str, ...]:
        return choose_ensemble(names, 2, (), random.Random(seed), topology=topology)

    assert {draw(seed) for seed in range(200)} == {
        one for one in permutations(names, 2) if topology.of(one[0]).rack != topology.of(one[1]).rack
    }
    assert all(draw(seed) == draw(seed) for seed in range(20))


def test_moves_make_it_better_or_are_not_made() -> None:
    rng = random.Random(3)
    for bookies in all_clusters():
        names = [f"b{at}" for at in range(len(bookies))]
        topology = cluster(bookies)
        adhering = [one for one in permutations(names, 3) if adheres(topology, one, 2, names)]
        for ensemble in permutations(names, 3):
            rest = [one for one in names if one not in ensemble]
            moves = choose_moves(names, ensemble, (), (), rng, write_quorum=2, topology=topology)
            after = tuple(moves.get(at, one) for at, one in enumerate(ensemble))
            before = lacking(topology, ensemble, 2, names)
            assert set(moves.values()) <= set(rest)
            assert len(set(after)) == 3
            assert lacking(topology, after, 2, names) < before if moves else after == ensemble
            possible = any(
                all(new == old or new in rest for new, old in zip(one, ensemble, strict=True)) for one in adhering
            )
            assert adheres(topology, after, 2, names) == possible, (bookies, ensemble, moves)


@pytest.mark.parametrize("seed", range(30))
def test_a_replacement_comes_from_the_rack_of_the_one_that_it_replaces(seed: int) -> None:
    topology = cluster([(rack, f"{rack}{at}") for rack in RACKS[1:] for at in range(3)])
    names = [f"b{at}" for at in range(9)]
    ensemble = ("b0", "b3")
    failed = {1: "b3"}
    found = choose_replacements(names, ensemble, failed, (), (), random.Random(seed), write_quorum=2, topology=topology)
    assert topology.of(found[1]).rack == "/two"
    found = choose_replacements(
        names, ensemble, failed, ("b4", "b5"), (), random.Random(seed), write_quorum=2, topology=topology
    )
    assert topology.of(found[1]).rack == "/three", "where its rack has nobody, one that no other member is in"
