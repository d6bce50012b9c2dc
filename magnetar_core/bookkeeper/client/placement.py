"""Which bookies form an ensemble. No IO: the caller passes the writable and the failed bookies and the random numbers.

The choice is random among the writable bookies. Bookies in quarantine are taken only when there are not enough others.
Racks are not known here; the configuration refuses settings about them.
"""

import random
from collections.abc import Collection, Mapping, Sequence

from magnetar_core.bookkeeper.client.errors import NotEnoughBookies


def choose_ensemble(
    writable: Collection[str], ensemble_size: int, quarantined: Collection[str], rng: random.Random
) -> tuple[str, ...]:
    """*ensemble_size* different bookies, in random order. Raises NotEnoughBookies."""
    if len(writable) < ensemble_size:
        names = ", ".join(sorted(writable)) or "none"
        raise NotEnoughBookies(f"an ensemble of {ensemble_size} bookies is asked for, writable are: {names}")
    chosen = _draw(writable, quarantined, ensemble_size, rng)
    rng.shuffle(chosen)
    return tuple(chosen)


def choose_replacements(
    writable: Collection[str],
    ensemble: Sequence[str],
    failed: Mapping[int, str],
    unreachable: Collection[str],
    quarantined: Collection[str],
    rng: random.Random,
) -> dict[int, str]:
    """A new bookie for each failed position, as far as there are enough: position → bookie.

    Members of the ensemble and the bookies in *unreachable* are not considered. May be empty or partial.
    """
    excluded = {*ensemble, *failed.values(), *unreachable}
    candidates = [bookie for bookie in writable if bookie not in excluded]
    chosen = _draw(candidates, quarantined, min(len(failed), len(candidates)), rng)
    return dict(zip(failed, chosen, strict=False))


def _draw(candidates: Collection[str], quarantined: Collection[str], count: int, rng: random.Random) -> list[str]:
    # Sorted: a set's order differs between processes, and a seed must give the same choice.
    good = sorted(bookie for bookie in candidates if bookie not in quarantined)
    if len(good) >= count:
        return rng.sample(good, count)
    rest = sorted(bookie for bookie in candidates if bookie in quarantined)
    return good + rng.sample(rest, count - len(good))
