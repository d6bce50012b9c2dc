"""The same call at the broker that serves a topic and at the other one, by each role: the same status, the same effect.

What a broker does for a caller at another one is done in the caller's name, and each part of a path stays what it is.
"""

import json
import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pytest

from tests.abuse.actions import Call, rest
from tests.abuse.driving import COUNT, SEED
from tests.abuse.roles import NAMESPACE, PARTED, PARTITIONS, ROLES, SUPER_USER, Doors
from tests.abuse.world import Server, Victim

pytestmark = [pytest.mark.process]

_PARTED: Final = rest(PARTED)
_NS: Final = f"/admin/v2/namespaces/{NAMESPACE}"

SUBSCRIPTIONS: Final = (
    "s1", "..", ".", "a/../b", "../..", "%2E%2E", "s1?force=true", "s1#x", "a b", "a+b", "ü", "s1/skip_all",
    "__compaction", "x" * 300,
)  # fmt: skip
SUFFIXES: Final = (
    ("PUT", "", None), ("DELETE", "", None), ("PUT", "/properties", {"stolen": "yes"}), ("POST", "/skip_all", None),
    ("POST", "/resetcursor/0", None), ("GET", "/properties", None),
)  # fmt: skip
ADMINISTRATORS: Final = ("boss", SUPER_USER)

WHOLE: Final = (
    ("PUT", f"{_PARTED}/subscription/%252E%252E/properties", {"stolen": "yes"}),
    ("PUT", f"{_PARTED}/subscription/%252E%252E%252Funload", None),
    ("PUT", f"{_PARTED}/properties", {"stolen": "yes"}), ("GET", f"{_PARTED}/subscriptions", None),
    ("GET", f"{_PARTED}/partitioned-stats", None), ("PUT", f"{_PARTED}/unload", None),
    ("DELETE", f"{_PARTED}/truncate", None), ("POST", f"{_NS}/clearBacklog", None),
    ("POST", f"{_NS}/unsubscribe/s1", None), ("POST", f"{_NS}/unsubscribe/%252E%252E", None),
    ("POST", f"{_NS}/clearBacklog/s1", None), ("PUT", f"{_NS}/unload", None),
    ("POST", f"{_PARTED}/createMissedPartitions", None),
)  # fmt: skip


def encodings(name: str) -> tuple[str, ...]:
    """As clients write the name of a subscription, and as no client does. Bare dots are not sent: clients take them out
    of a path themselves."""
    once = quote(name, safe="").replace(".", "%2E")
    bare = quote(name, safe="")
    return once, quote(once, safe=""), once if bare in (".", "..") else bare


class Effect(NamedTuple):
    """What a call may have changed."""

    subscriptions: str
    """With their properties."""
    properties: str
    """Of the topic and of each partition."""


async def effect(doors: tuple[Doors, Doors]) -> Effect:
    async def told(path: str) -> Any:
        answer = await doors[0].call(SUPER_USER, "GET", path)
        return json.loads(answer.text) if answer.status == 200 else answer.status

    stats = await told(f"{_PARTED}/partitioned-stats?perPartition=true")
    properties = [await told(f"{_PARTED}/properties")]
    subscriptions = []
    for number in range(PARTITIONS):
        there = stats["partitions"].get(f"{PARTED}-partition-{number}", {}).get("subscriptions", {})
        subscriptions.append({name: there[name].get("subscriptionProperties") for name in sorted(there)})
        properties.append(await told(f"{_PARTED}-partition-{number}/properties"))
    return Effect(json.dumps(subscriptions), json.dumps(properties))


async def restore(doors: tuple[Doors, Doors]) -> None:
    for one in json.loads((await doors[0].call(SUPER_USER, "GET", f"{_PARTED}/subscriptions")).text):
        if one != "s1":
            await doors[0].call(SUPER_USER, "DELETE", f"{_PARTED}/subscription/{encodings(one)[1]}?force=true")
    await doors[0].call(SUPER_USER, "PUT", f"{_PARTED}/subscription/s1")
    await doors[0].call(SUPER_USER, "PUT", f"{_PARTED}/subscription/s1/properties", {})
    await doors[0].call(SUPER_USER, "DELETE", f"{_PARTED}/properties?key=stolen")


def calls(rng: random.Random) -> Iterator[Call]:
    for method, path, body in WHOLE:
        yield Call(method, path, body)
    while True:
        method, suffix, body = rng.choice(SUFFIXES)
        name = rng.choice(encodings(rng.choice(SUBSCRIPTIONS)))
        topic = rng.choice([_PARTED, f"{_PARTED}-partition-{rng.randrange(PARTITIONS)}"])
        yield Call(method, f"{topic}/subscription/{name}{suffix}", body)


async def test_a_call_is_the_same_at_each_broker(
    guarded_server: Server, victim: Victim, doors: tuple[Doors, Doors]
) -> None:
    rng = random.Random(f"{SEED} forwarded")
    await restore(doors)
    begun = await effect(doors)
    drawn = calls(rng)
    for number in range(len(WHOLE) + COUNT // 15):
        call = next(drawn)
        is_whole = COUNT >= 1_000 and number < len(WHOLE)
        for role in ROLES if is_whole else ("consumer", rng.choice(ROLES)):
            found = []
            for at in doors:
                answer = await at.call(role, call.method, call.path, call.body)
                after = await effect(doors)
                found.append((answer.status, after))
                if after != begun:
                    assert not answer.is_refused, f"{role}: {call} was refused and changed {begun} to {after}"
                    is_its_own = role in ADMINISTRATORS or after.properties == begun.properties
                    assert is_its_own, f"{role}: {call} changed the properties to {after.properties}"
                    await restore(doors)
                    assert await effect(doors) == begun, call
            assert found[0] == found[1], f"{role}: {call} (MAGNETAR_ABUSE_SEED={SEED})"
            assert found[0][0] < 500, f"{role}: {call}: {found[0][0]}"
        guarded_server.check(str(call))
    await victim.check()
