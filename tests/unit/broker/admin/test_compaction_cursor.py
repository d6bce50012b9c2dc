"""The cursor of compaction in the answers about subscriptions, as Apache's brokers show it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from broker.admin.numbers.metrics import broker_samples
from broker.topic.compaction.compactor import CompactionStatus
from magnetar_core.runtime.observe import Sample
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.test_official_client import client

TOPIC = TopicName.parse("persistent://public/default/kept")
PATH = "/admin/v2/persistent/public/default/kept"
THRESHOLD = "/admin/v2/namespaces/public/default/compactionThreshold"


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


def told_of(side: Side, subscription: str) -> dict[str, float]:
    """What /metrics tells of a subscription, but for what rates hold back."""
    return {
        sample.name: sample.value
        for sample in broker_samples(side.broker, [])
        if isinstance(sample, Sample)
        and ("subscription", subscription) in sample.labels
        and "throttled" not in sample.name
    }


async def test_the_cursor_of_compaction_is_shown_as_a_subscription_that_nobody_consumes(world: AdminWorld) -> None:
    side = await world.side()

    def publish() -> None:
        with client(side.url) as c:
            c.subscribe(TOPIC.full, "s")
            producer = c.create_producer(TOPIC.full, batching_enabled=False)
            for number in range(6):
                producer.send(b"%d" % number, partition_key=f"k{number % 2}")

    await world.run(publish)

    async def names() -> list[str]:
        found: list[str] = (await world.call(side, "GET", f"{PATH}/subscriptions")).json
        return found

    assert await names() == ["s"], "nothing is compacted"
    assert (await world.call(side, "PUT", THRESHOLD, 1_000_000_000)).status == 204
    topic = side.broker.topics[TOPIC]
    await eventually(lambda: "__compaction" in topic.ledger.cursors)
    assert await names() == ["__compaction", "s"]
    stats = (await world.call(side, "GET", f"{PATH}/stats?getEarliestTimeInBacklog=true")).json
    shown, other = stats["subscriptions"]["__compaction"], stats["subscriptions"]["s"]
    assert shown.keys() == other.keys() - {"activeConsumerName"}
    assert (shown["msgBacklog"], shown["msgBacklogNoDelayed"], shown["type"], shown["consumers"]) == (6, 6, "None", [])
    assert shown["backlogSize"] == topic.ledger.bytes_total
    assert shown["earliestMsgPublishTimeInBacklog"] > 0
    assert stats["backlogSize"] == other["backlogSize"], "it is no backlog of the topic"
    told, usual = told_of(side, "__compaction"), told_of(side, "s")
    assert told.keys() == usual.keys()
    assert told["pulsar_subscription_back_log"] == 6
    of_topic = {one.name: one.value for one in broker_samples(side.broker, []) if isinstance(one, Sample)}
    assert (of_topic["pulsar_subscriptions_count"], of_topic["pulsar_msg_backlog"]) == (2, 12), "as Apache's count"
    topic.compactor.start()
    await eventually(lambda: topic.compactor.facts.status is CompactionStatus.SUCCESS)
    shown = (await world.call(side, "GET", f"{PATH}/stats")).json["subscriptions"]["__compaction"]
    assert (shown["msgBacklog"], shown["backlogSize"]) == (0, 0)
    assert (await world.call(side, "GET", f"{PATH}/internalStats")).json["cursors"].keys() == {"__compaction", "s"}


@pytest.mark.parametrize(
    ("method", "call"), [("DELETE", ""), ("POST", "/skip_all"), ("POST", "/skip/1"), ("POST", "/resetcursor/1")]
)
async def test_it_is_moved_by_compaction_alone(world: AdminWorld, method: str, call: str) -> None:
    side = await world.side()
    assert (await world.call(side, "PUT", PATH)).status == 204
    refused = await world.call(side, method, f"{PATH}/subscription/__compaction{call}")
    assert refused.status == 404, "there is none yet"
    assert (await world.call(side, "PUT", THRESHOLD, 1_000_000_000)).status == 204
    await world.call(side, "GET", f"{PATH}/stats")
    topic = side.broker.topics[TOPIC]
    await eventually(lambda: "__compaction" in topic.ledger.cursors)
    refused = await world.call(side, method, f"{PATH}/subscription/__compaction{call}")
    assert refused.status == 412
    assert "remove its compaction threshold" in refused.json["reason"]
    assert "__compaction" in topic.ledger.cursors
