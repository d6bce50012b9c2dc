"""Whether servers hold more and more memory: the rule, over samples that others take. No IO.

A sample is taken at the end of a round, when its topic has been deleted and no client is connected. It covers the
servers that live through the whole run (the nemesis ends the others now and then). Rules:

1. No server ever holds more than RESIDENT_MAX.
2. At the end a server holds at most GROWTH_SHARE more than the most that it held in the warm-up, and GROWTH_BYTES
   (what the allocator keeps after one busy round is not a leak). The warm-up is the first rounds, a quarter of them and
   two at least; with fewer than ROUNDS_MIN rounds only rule 1 is looked at.
"""

from collections.abc import Mapping, Sequence
from typing import Final

RESIDENT_MAX: Final = 600 << 20
GROWTH_SHARE: Final = 0.25
GROWTH_BYTES: Final = 24 << 20
ROUNDS_MIN: Final = 5

_MIB: Final = 1 << 20

Sample = Mapping[tuple[str, int], int]
"""(server, pid) → bytes"""


def problems(rounds: Sequence[Sample], highest: Sample) -> list[str]:
    """*rounds*: a sample of each; *highest*: the most that was seen of each process at any time."""
    found = [
        f"{name} (pid {pid}) held {size / _MIB:.0f} MiB; {RESIDENT_MAX / _MIB:.0f} are allowed"
        for (name, pid), size in highest.items()
        if size > RESIDENT_MAX
    ]
    if len(rounds) < ROUNDS_MIN:
        return found
    warm_up = rounds[: max(len(rounds) // 4, 2)]
    for key, last in rounds[-1].items():
        if all(key in sample for sample in rounds):
            first = max(sample[key] for sample in warm_up)
            allowed = first * (1 + GROWTH_SHARE) + GROWTH_BYTES
            if last > allowed:
                found.append(
                    f"{key[0]} (pid {key[1]}) held {first / _MIB:.0f} MiB after the first rounds and {last / _MIB:.0f} "
                    f"at the end; {allowed / _MIB:.0f} are allowed"
                )
    return found


def table(rounds: Sequence[Sample]) -> list[str]:
    """A line for each server that lived through all rounds: MiB at the end of each."""
    if not rounds:
        return []
    return [
        f"{name:9} {' '.join(f'{sample[name, pid] / _MIB:.0f}' for sample in rounds)}"
        for name, pid in rounds[-1]
        if all((name, pid) in sample for sample in rounds)
    ]
