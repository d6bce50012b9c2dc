"""What operators change while clients are at work: policies of the namespace, which come into force and go again.

Limits and rates are such that clients meet them. When the faults are over there are none any more: whoever waits for an
old one has to go on.
"""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any, Final

from broker.tenancy.changes import namespace_path
from magnetar.testing.simulated.cluster import SimulatedCluster

NAMESPACE: Final = "public/default"

# With the second one a client waits for an hour, if nobody takes the rate back.
_DISPATCH_RATES: Final[tuple[dict[str, Any] | None, ...]] = (
    None,
    {"dispatchThrottlingRateInMsg": 20, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1},
    {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 3600},
    {
        "dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1,
        "relativeToPublishRate": True,
    },
)  # fmt: skip
_PUBLISH_RATES: Final[tuple[dict[str, Any] | None, ...]] = (
    None,
    {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
)


class Operators:
    def __init__(self, cluster: SimulatedCluster, cluster_name: str, note: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._cluster_name = cluster_name
        self._note = note
        self._changing: set[asyncio.Task[None]] = set()

    def change(self, rng: random.Random) -> None:
        """Some policies are others from now on."""
        limits = {
            "max_unacked_messages_per_consumer": rng.choice((None, 1, 5)),
            "max_unacked_messages_per_subscription": rng.choice((None, 3)),
        }
        rates = {
            "topicDispatchRate": rng.choice(_DISPATCH_RATES),
            "subscriptionDispatchRate": rng.choice(_DISPATCH_RATES),
            "publishMaxMessageRate": rng.choice(_PUBLISH_RATES),
        }
        changed = rng.sample([*limits, *rates], 2)
        self._set({name: value for name, value in (limits | rates).items() if name in changed})

    def take_back(self) -> None:
        """No limit and no rate is left."""
        self._set(
            dict.fromkeys(
                (
                    "max_unacked_messages_per_consumer", "max_unacked_messages_per_subscription", "topicDispatchRate",
                    "subscriptionDispatchRate", "publishMaxMessageRate",
                )
            )
        )  # fmt: skip

    def _set(self, values: dict[str, Any]) -> None:
        task = self._cluster.loop.create_task(self._store(values), context=self._cluster.network.context)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    async def _store(self, values: dict[str, Any]) -> None:
        root, path = self._cluster.server.root, namespace_path(NAMESPACE)
        node = await root.get(path)
        if node is None:
            return  # no broker has begun it yet
        policies = json.loads(node.value)
        for name, value in values.items():
            is_rate = name.endswith("Rate")
            policies[name] = value if not is_rate else {} if value is None else {self._cluster_name: value}
        await root.put(path, json.dumps(policies).encode(), node.version)
        self._note(f"policies of {NAMESPACE}: {values}")
