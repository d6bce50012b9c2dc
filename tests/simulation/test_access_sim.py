"""Programs take turns in writing a topic exclusively while brokers and bookies fail: no two of them write at a time."""

import asyncio
import itertools

import pytest

import magnetar
import magnetar.testing
from magnetar.client.errors import ProducerFenced
from magnetar.testing.simulated.under_test import SimulatedClusterUnderTest

WRITERS = 3
TURNS = 4
MESSAGES = 6


async def application(cluster: SimulatedClusterUnderTest) -> None:
    turns = itertools.count()
    acknowledged: set[bytes] = set()

    async def write(number: int) -> None:
        """So many turns: a producer each, whose messages have its number."""
        async with magnetar.AsyncClient(cluster.grpc_url) as client:
            for _ in range(TURNS):
                access: magnetar.ProducerAccess = "exclusive_with_fencing" if number == 0 else "wait_for_exclusive"
                producer = client.producer("state", access=access, send_timeout_s=600)
                try:
                    await producer.open()
                    turn = next(turns)
                    for message in range(MESSAGES):
                        payload = b"%d %d" % (turn, message)
                        await producer.send(payload)
                        acknowledged.add(payload)
                        await asyncio.sleep(0.3)
                except ProducerFenced:
                    pass
                finally:
                    await producer.close()
                await asyncio.sleep(2.0)

    async with magnetar.AsyncClient(cluster.grpc_url) as client:
        await (await client.consumer("state", "keeps", from_earliest=True)).close()
    trouble = asyncio.create_task(cluster.trouble(30))
    await asyncio.gather(*(write(number) for number in range(WRITERS)))
    await trouble
    async with magnetar.AsyncClient(cluster.grpc_url) as client, client.reader("state") as reader:
        stored = []
        while await reader.has_more():
            stored.append((await reader.receive(timeout_s=600)).payload)
    assert acknowledged <= set(stored), "what was acknowledged is stored"
    writers = [turn for turn, _ in itertools.groupby(payload.split()[0] for payload in stored)]
    assert len(writers) == len(set(writers)), f"one that another one followed has written again: {stored}"
    assert len(writers) > TURNS


@pytest.mark.parametrize("seed", range(3))
def test_no_two_producers_with_exclusive_access_write_at_a_time(seed: int) -> None:
    cluster = magnetar.testing.simulated_cluster(seed)
    try:
        cluster.run(application(cluster))
    except BaseException as error:
        error.add_note("\n".join(cluster.story))
        raise
