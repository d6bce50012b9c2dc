"""Hostile clients of each role against two brokers with authorization, while another tenant publishes and reads."""

import random
from typing import Final

import pytest

from tests.abuse import attacks, many_topics, revoked, unfinished_calls
from tests.abuse.attacks import Attack, Field
from tests.abuse.driving import COUNT, abuse
from tests.abuse.kinds import GUARDED, Run
from tests.abuse.roles import Doors
from tests.abuse.world import Server, Victim

pytestmark = [pytest.mark.process]

# As `attacks.ATTACKS`: how many inputs of `COUNT`, and what sends them.
ATTACKS: Final[dict[str, tuple[float, Attack]]] = {
    **attacks.ATTACKS,
    "topics": (1.0, many_topics.topics),
    "calls": (1.0, unfinished_calls.calls),
    "revoked": (0.1, revoked.revoked),
}

assert ATTACKS.keys() == GUARDED.keys()


# `make test` sends hostile schemas, one kind of bytes for the decoders, and hostile names, one for the doors.
_SHORT: Final = ("schemas", "names")
_LONG: Final = pytest.mark.long("fourteen kinds beside a victim: a second or more each")


@pytest.mark.parametrize("kind", [kind if kind in _SHORT else pytest.param(kind, marks=_LONG) for kind in GUARDED])
async def test_they_harm_nobody(
    guarded_server: Server, victim: Victim, numbers: Run, doors: tuple[Doors, Doors], kind: str
) -> None:
    share, attack = ATTACKS[kind]
    field = Field(guarded_server, doors)

    async def send(rng: random.Random) -> int:
        return await attack(field, rng)

    await abuse(guarded_server, victim, numbers, kind, send, max(round(COUNT * share), 1))
