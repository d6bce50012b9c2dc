"""What happens in a round, drawn from a seed: the faults and when, how the data is stored, what clients do. No IO.

    Random("SEED/ROUND")  ──▶  Round(faults, quorums, …)       the nemesis carries it out
    Random("SEED/ROUND/NAME") in each client                   what that client does, message by message

Rules:

1. The same seed and round draw the same plan on every machine: nothing else goes into it.
2. A server suffers one fault at a time; at most AWAY_MAX servers are away at once, so that something is left to go on.
3. The first broker and the first bookie are never ended: what their memory does is seen over the whole run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

PARTITIONS: Final = 8
BOOKIES: Final = 4
BROKERS: Final = 3

AWAY_MAX: Final = 2

# Quiet time at the start of a round, so that its topic is there and clients are connected; faults come after it.
QUIET_S: Final = 3.0
GAP_S: Final = (0.5, 4.0)

# Shorter than a session (2 s), about as long, and long enough for a takeover.
AWAY_S: Final = (0.3, 1.0, 2.5, 6.0)

UNLOADS: Final = ("unload a partition", "unload the namespace")
RESET: Final = "reset to the beginning"
ENDINGS: Final = ("kill -9", "restart")
PAUSE: Final = "pause"
CUTS: Final = ("cut off silently", "cut off with resets")
FILLS: Final = ("fill the disk to its threshold", "fill the disk")

# What clients do not do themselves, since several of them do not survive it: a seek of several consumers' subscription.
RESET_SUBSCRIPTIONS: Final = ("python-shared", "python-key-shared", "python-failover")

# ensemble, write quorum, ack quorum
QUORUMS: Final = ((2, 2, 2), (3, 3, 2), (3, 2, 2), (2, 2, 1))


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: str
    target: str
    """A server, the number of a partition, or such a number and a subscription; empty: all."""
    for_s: float = 0.0

    def __str__(self) -> str:
        lasting = f" for {self.for_s:g} s" if self.for_s else ""
        return f"{self.at_s:6.1f} s  {self.kind}{' ' + self.target if self.target else ''}{lasting}"


@dataclass(frozen=True, slots=True)
class Round:
    number: int
    seed: str
    seconds: float
    faults: tuple[Fault, ...]
    quorums: tuple[int, int, int]
    trims: bool
    """Consumed ledgers are deleted at once; then nothing is left for readers, and there are none."""

    @property
    def name(self) -> str:
        return f"round-{self.number}"


def server_names(kind: str) -> list[str]:
    """As the cluster calls them."""
    return [f"{kind}-{number + 1}" for number in range({"broker": BROKERS, "bookie": BOOKIES}[kind])]


def draw_round(seed: str, number: int, seconds: float, *, small_disk: str | None) -> Round:
    """*small_disk*: the bookie whose disk can be filled; None: that fault is left out, and others stay as they are."""
    rng = Random(f"{seed}/{number}")
    quorums = rng.choice(QUORUMS)
    # The first round has readers: the short run of `make test` is only that one.
    trims = rng.random() < 0.25 and number > 1
    faults = []
    busy_until: dict[str, float] = {}
    at_s = QUIET_S
    while at_s < seconds:
        fault = _draw_fault(rng, at_s, busy_until, small_disk)
        if fault is not None:
            faults.append(fault)
            if fault.for_s:
                busy_until[fault.target] = at_s + fault.for_s + 0.5
        at_s = round(at_s + rng.uniform(*GAP_S), 1)
    return Round(number, seed, seconds, tuple(faults), quorums, trims)


def _draw_fault(rng: Random, at_s: float, busy_until: dict[str, float], small_disk: str | None) -> Fault | None:
    kind = rng.choices(
        (*UNLOADS, RESET, *ENDINGS, PAUSE, *CUTS, *FILLS),
        (20, 6, 8, 16, 6, 16, 12, 8, 4, 2),
    )[0]
    for_s = rng.choice(AWAY_S)
    if kind in UNLOADS:
        return Fault(at_s, kind, str(rng.randrange(PARTITIONS)) if kind == UNLOADS[0] else "")
    if kind == RESET:
        return Fault(at_s, kind, f"{rng.randrange(PARTITIONS)} {rng.choice(RESET_SUBSCRIPTIONS)}")
    if kind in FILLS:
        candidates: Sequence[str] = [small_disk or "bookie-2"]
    elif kind in ENDINGS:
        candidates = [*server_names("broker")[1:] * 2, *server_names("bookie")[1:], "zookeeper"]
    else:
        candidates = [*server_names("broker") * 2, *server_names("bookie"), "zookeeper"]
    target = rng.choice(candidates)
    away = [name for name, until_s in busy_until.items() if until_s > at_s]
    if target in away or len(away) >= AWAY_MAX or (kind in FILLS and small_disk is None):
        return None
    return Fault(at_s, kind, target, for_s)
