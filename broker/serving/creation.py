"""Which topics may be made: by their names, by the policies of their namespaces, and by how many there are."""

from collections.abc import Awaitable, Callable

from broker.errors import NotAllowed, metadata_errors
from broker.names import NO_CONTROLS
from broker.policies.namespace import AutoCreation, NamespacePolicies
from broker.settings.config import BrokerConfig
from broker.tenancy.namespaces import Namespaces
from broker.tenancy.partitions import Partitions
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.visible import controlling, visible
from magnetar_core.topics.topic_name import TopicName

_ANOTHER_NAME = "take another name"


class Creation:
    """The rules of one broker, and the topics that it has let in and that are not there yet."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        namespaces: Namespaces,
        partitioned: Partitions,
        topics_of: Callable[[str], Awaitable[list[str]]],
    ) -> None:
        """*topics_of* gives the full names of the persistent topics of a namespace."""
        self._config = config
        self._clock = clock
        self._namespaces = namespaces
        self._partitioned = partitioned
        self._topics_of = topics_of
        self._admitted: dict[str, dict[str, float]] = {}
        """Namespace with a limit of topics → its topics that are being made → until when they count."""

    def automatic(self, policies: NamespacePolicies) -> AutoCreation:
        """Whether clients make topics by using them, and with how many partitions."""
        if policies.auto_creation is not None:
            return policies.auto_creation
        partitioned = self._config.auto_topic_creation_type == "partitioned"
        return AutoCreation(
            self._config.allow_auto_topic_creation, self._config.default_partitions if partitioned else 0
        )

    async def partitions_of_base(self, topic: TopicName) -> int:
        """How many partitions *topic* has, or the topic that it is a partition of. Raises MetadataFailure."""
        with metadata_errors():
            return await self._partitioned.count_of_base(topic)

    async def check_new(self, topic: TopicName, partitions: int = 0) -> None:
        """Raises NotAllowed if *topic* may not be made, with so many partitions; TopicNotFound, MetadataFailure."""
        await self.check_name(topic)
        await self.check_room_for(topic, range(partitions) if partitions else None)

    async def check_partition(self, topic: TopicName) -> None:
        """Raises NotAllowed if *topic* has the name of a partition that there is not; MetadataFailure.

        For topics that are made by a request of their own, as with Apache's admin API. A client that publishes to such
        a name, of a topic without partitions, gets a topic of that name.
        """
        if topic.partition >= 0 and topic.partition >= (partitions := await self.partitions_of_base(topic)):
            raise NotAllowed(_no_such_partition(topic, partitions), way_out=_ANOTHER_NAME)

    async def check_name(self, topic: TopicName) -> None:
        """Raises NotAllowed if a new topic may not have this name; MetadataFailure.

        A name with control characters is refused, but for partitions of a topic that is there already; with
        strictTopicNameEnabled so are others.
        """
        character, is_strict = controlling(topic.local), self._config.strict_topic_names and not topic.is_system
        if character is None and not is_strict:
            return
        is_partition = 0 <= topic.partition < await self.partitions_of_base(topic)
        if character is not None and not is_partition:
            raise NotAllowed(
                f"Invalid topic name {visible(topic.full)}: {NO_CONTROLS.format(character)}", way_out=_ANOTHER_NAME
            )
        problem = topic.strict_problem(is_partition=is_partition) if is_strict else None
        if problem is not None:
            raise NotAllowed(f"Invalid topic name {topic}: {problem} (strictTopicNameEnabled)", way_out=_ANOTHER_NAME)

    async def check_room_for(self, topic: TopicName, partitions: range | None = None) -> None:
        """Raises NotAllowed if the namespace may not have *topic*, or these *partitions* of it, too. TopicNotFound,
        MetadataFailure."""
        policies = await self._namespaces.policies(topic.namespace)
        most = self._config.max_topics_per_namespace if policies.max_topics is None else policies.max_topics
        if not most or topic.is_system:
            return
        there = set(await self._topics_of(topic.namespace))
        # Others were let in a moment ago, and are not there yet: many ask at once.
        now_s = self._clock.monotonic()
        admitted = self._admitted.pop(topic.namespace, {})
        admitted = {name: until_s for name, until_s in admitted.items() if until_s > now_s and name not in there}
        new_names = {topic.full} if partitions is None else {topic.with_partition(number).full for number in partitions}
        is_full = len(there | admitted.keys() | new_names) > most
        if not is_full and topic.is_persistent:  # others do not count
            admitted |= dict.fromkeys(new_names - there, now_s + self._config.topic_load_s)
        if admitted:
            self._admitted[topic.namespace] = admitted
        if is_full:
            raise NotAllowed(f"Exceed maximum number of topics in namespace {topic.namespace}: it may have {most}")

    def forget(self, name: TopicName) -> None:
        """Forget that *name* was let in: it is there and counted by itself from now on, or will not be there."""
        if self._admitted and (admitted := self._admitted.get(name.namespace)):
            admitted.pop(name.full, None)


def _no_such_partition(topic: TopicName, partitions: int) -> str:
    """Why *topic* is not made, whose base has only so many *partitions*."""
    if not partitions:
        missing = f"numeric value if there isn't a partitioned topic {topic.base.local} created."
    else:
        missing = f"a number larger than {partitions - 1}: {topic.base} has {partitions} partitions."
    return f'Can\'t create topic {topic.local} with "-partition-" followed by {missing}'
