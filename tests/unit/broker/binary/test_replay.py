"""Conversations recorded between clients and Apache's broker, held again with this one."""

import pytest

from tests.unit.broker.binary.replay import Replay
from tests.unit.broker.conftest import BrokerInMemory


async def replay(world: BrokerInMemory, *names: str) -> None:
    await world.set_policies("public/noauto", autoTopicCreationOverride={"allowAutoTopicCreation": False})
    await world.store.put(
        "/admin/partitioned-topics/public/default/persistent/parts", b'{"partitions":3,"deleted":false}'
    )
    ledger_ids: dict[int, int] = {}
    for name in names:
        await Replay(name, world.broker.port, ledger_ids).run()


@pytest.mark.parametrize(
    "name",
    [
        "pulsarraw-noconnect",
        "pulsarraw-unknown",
        "pulsarraw-proxyauth",
        "pulsarraw-errors",
        "pulsarraw-schema",
        "pulsar-java-batchack",
        "pulsar-java-batched",
        "pulsar-java-chunk",
        "pulsar-java-consume",
        "pulsar-java-errors",
        "pulsar-java-failover",
        "pulsar-java-keyshared",
        "pulsar-java-partitioned",
        "pulsar-java-pattern",
        "pulsar-java-seek",
    ],
)
async def test_a_recorded_conversation_gets_the_same_answers(world: BrokerInMemory, name: str) -> None:
    if name == "pulsar-java-failover":  # both consumers are there before one is active, on a busy machine as well
        await world.restart(failover_delay_ms=1_000)
    await replay(world, name)


async def test_raw_frames_of_a_producer_a_consumer_and_an_old_client(world: BrokerInMemory) -> None:
    await replay(world, "pulsarraw-produce", "pulsarraw-consume", "pulsarraw-v10")


async def test_the_tour_of_the_c_plus_plus_client(world: BrokerInMemory) -> None:
    for topic in ("pat-1", "pat-2"):
        await world.ledgers.open(f"public/default/persistent/{topic}")
    await replay(world, "pulsar-cpp-tour")
