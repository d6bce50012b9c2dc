"""What a broker does for its open topics again and again.

Work on one topic that fails is logged, and the next one follows.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from broker.errors import BrokerError, MetadataFailure
from broker.policies.topic.service import TopicPolicies
from broker.records.json_records import RecordError, RecordInUse
from broker.serving.non_persistent_topics import NonPersistentTopics
from broker.serving.open_topics import OpenTopics, in_turns
from broker.settings.config import BrokerConfig
from broker.topic.topic import Topic
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.buckets import QUOTA_CHECK_BOUNDS, Buckets
from magnetar_core.runtime.tasks import Tasks, attempt
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName

log = logging.getLogger(__name__)

# How often topics are asked whether a snapshot of their sequence ids is due.
HOUSEKEEPING_S: Final = 30.0


class Deleting(Protocol):
    """How topics that nobody uses are deleted."""

    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Raises BrokerError."""
        ...

    async def delete_partitioned(self, name: TopicName) -> None:
        """Raises RecordInUse, MetadataError, Corruption."""
        ...


class _Work(NamedTuple):
    name: str
    period_s: Callable[[], float]
    round: Callable[[], Awaitable[None]]


class Periodic:
    """The periodic work of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        topics: OpenTopics,
        non_persistent: NonPersistentTopics,
        topic_policies: TopicPolicies,
        deleting: Deleting,
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._non_persistent = non_persistent
        self._topic_policies = topic_policies
        self._deleting = deleting
        self.quota_checks = Buckets(QUOTA_CHECK_BOUNDS)
        """Milliseconds of each round in which the backlogs of all topics were compared with their quotas."""

    def start(self, tasks: Tasks) -> None:
        """Begin all work; *tasks* ends it."""
        for work in self._all_work():
            tasks.spawn(self._repeat(work), work.name)

    def _all_work(self) -> list[_Work]:
        """Each work with its period, which is read anew for each round: settings change."""
        config = self._config
        works = [
            _Work("housekeeping", lambda: HOUSEKEEPING_S, self._run_housekeeping),
            _Work("rates", lambda: config.stats_update_s, self._take_rates),
            _Work(
                "expiry",
                lambda: config.expiry_check_minutes * 60,
                self._for_each_topic("passing over old messages", Topic.expire_by_policy),
            ),
            _Work("inactive topics", lambda: config.delete_inactive_topics_s, self._delete_inactive),
            _Work("compaction", lambda: config.compaction_check_s, self._compact_when_due),
            _Work(
                "subscription expiry",
                lambda: config.subscription_expiry_check_minutes * 60,
                self._for_each_topic("removing unused subscriptions", Topic.expire_subscriptions),
            ),
        ]
        if config.backlog_quota_checks:
            works.append(_Work("backlog quotas", lambda: config.backlog_quota_check_s, self._keep_quotas))
        return works

    async def _repeat(self, work: _Work) -> None:
        while True:
            await self._clock.sleep(work.period_s())
            await work.round()

    def _for_each_topic(
        self, step_name: str, step: Callable[[Topic], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        """A round that does *step* with each open topic; *step_name* says in the log what failed."""

        async def round_() -> None:
            async for topic in in_turns(self._topics):
                await attempt(f"{topic.name}: {step_name}", step(topic))

        return round_

    async def _run_housekeeping(self) -> None:
        self._topic_policies.keep_only({name.namespace for name in self._topics})
        async for topic in in_turns(self._topics):
            topic.tick()

    async def _take_rates(self) -> None:
        now_ms = self._clock.wall_ms()
        async for topic in in_turns(self._topics):
            topic.take_rates(now_ms)
        await self._non_persistent.take_rates(now_ms)

    async def _keep_quotas(self) -> None:
        since_s = self._clock.monotonic()
        await self._for_each_topic("keeping its quotas", Topic.keep_quotas)()
        self.quota_checks.add(int((self._clock.monotonic() - since_s) * 1000))

    async def _compact_when_due(self) -> None:
        async for topic in in_turns(self._topics):
            topic.compact_if_due()

    async def _delete_inactive(self) -> None:
        await self.delete_inactive_topics()
        if self._config.delete_inactive_topics:
            await self._non_persistent.forget_idle(self._config.delete_inactive_topics_s)

    async def delete_inactive_topics(self) -> None:
        """Delete the topics that nobody has used for as long as their policies say."""
        async for topic in in_turns(self._topics):
            name = topic.name
            if name.is_system or not topic.is_idle(self._clock.wall_ms()):
                continue
            try:
                await self._deleting.delete_topic(name, force=True)
                log.info("%s was deleted: nobody used it for %d s", name, topic.limits.inactive.idle_s)
                if self._config.delete_inactive_partitioned and name.partition >= 0:
                    await self._delete_partitioned(name.base)
            except BrokerError as error:
                log.warning("%s is not used and could not be deleted: %s", name, error)

    async def _delete_partitioned(self, base: TopicName) -> None:
        """What is stored of a partitioned topic, if none of its partitions is there. Raises BrokerError."""
        try:
            await self._deleting.delete_partitioned(base)
        except RecordInUse:
            return
        except (RecordError, MetadataError, Corruption) as error:
            raise MetadataFailure(f"{base} has no partitions left and could not be deleted: {error}") from error
        log.info("%s was deleted: none of its partitions is there any more", base)
