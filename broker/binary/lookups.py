"""Questions about topics that need no producer or consumer: where they are, what there is, and their schemas. No IO."""

from typing import Final, Protocol

from broker.binary.admission.guard import Guard
from broker.binary.answers import Answers
from broker.binary.listing import filter_topics, topics_hash
from broker.errors import NotAllowed
from broker.names import COORDINATORS, parse_namespace
from broker.security.authorization import Operation, about_namespace
from broker.settings.config import BrokerConfig
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command
from magnetar_core.topics.topic_name import TopicName

_T: Final = wire.BaseCommand


class Place(Protocol):
    """Where a client has to go."""

    @property
    def service_url(self) -> str: ...

    @property
    def service_url_tls(self) -> str: ...

    @property
    def is_redirect(self) -> bool: ...

    @property
    def authoritative(self) -> bool: ...


class LookupBroker(Protocol):
    """The broker, as questions about topics use it. All coroutines raise BrokerError."""

    config: BrokerConfig

    async def lookup(self, topic: TopicName, *, authoritative: bool, listener: str) -> Place: ...

    async def partitions(self, topic: TopicName, *, create: bool) -> int: ...

    async def topics_of_namespace(self, namespace: str, *, persistent: bool, non_persistent: bool) -> list[str]: ...

    async def get_schema(self, topic: TopicName, version: bytes | None) -> tuple[wire.Schema, bytes]: ...

    async def put_schema(self, topic: TopicName, schema: wire.Schema) -> bytes: ...


class Lookups:
    """Answers the questions of one connection; keeps nothing between them."""

    __slots__ = ("_answers", "_broker", "_guard")

    def __init__(self, broker: LookupBroker, answers: Answers, guard: Guard) -> None:
        self._broker = broker
        self._answers = answers
        self._guard = guard

    def on_lookup(self, lookup: wire.CommandLookupTopic) -> None:
        """LOOKUP: which broker serves a topic."""

        async def work() -> bytes:
            topic = await self._guard.topic(lookup.topic, Operation.LOOKUP)
            answer = await self._broker.lookup(
                _not_of_transactions(topic),
                authoritative=lookup.authoritative,
                listener=lookup.advertised_listener_name,
            )
            kind = wire.CommandLookupTopicResponse
            return command(
                _T.LOOKUP_RESPONSE,
                request_id=lookup.request_id,
                response=kind.Redirect if answer.is_redirect else kind.Connect,
                brokerServiceUrl=answer.service_url or None,
                brokerServiceUrlTls=answer.service_url_tls or None,
                authoritative=answer.authoritative,
                proxy_through_service_url=False,
            )

        def failed(code: int, text: str) -> bytes:
            return command(
                _T.LOOKUP_RESPONSE,
                request_id=lookup.request_id,
                response=wire.CommandLookupTopicResponse.Failed,
                error=code,
                message=text,
            )

        self._answers.later(work, failed, "lookup", looks_up=True)

    def on_partitions(self, request: wire.CommandPartitionedTopicMetadata) -> None:
        """PARTITIONED_METADATA: how many partitions a topic has; 0 if it is not partitioned."""

        async def work() -> bytes:
            topic = await self._guard.topic_for_partitions(request.topic)
            partitions = await self._broker.partitions(
                _not_of_transactions(topic), create=request.metadata_auto_creation_enabled
            )
            return command(
                _T.PARTITIONED_METADATA_RESPONSE,
                request_id=request.request_id,
                response=wire.CommandPartitionedTopicMetadataResponse.Success,
                partitions=partitions,
            )

        def failed(code: int, text: str) -> bytes:
            return command(
                _T.PARTITIONED_METADATA_RESPONSE,
                request_id=request.request_id,
                response=wire.CommandPartitionedTopicMetadataResponse.Failed,
                error=code,
                message=text,
            )

        self._answers.later(work, failed, "partitions", looks_up=True)

    def on_topics_of_namespace(self, request: wire.CommandGetTopicsOfNamespace) -> None:
        """GET_TOPICS_OF_NAMESPACE: the topics, or only a hash if the client has the same list."""

        async def work() -> bytes:
            parse_namespace(request.namespace)
            await self._guard.check(about_namespace(Operation.GET_TOPICS, request.namespace))
            mode = wire.CommandGetTopicsOfNamespace
            topics = await self._broker.topics_of_namespace(
                request.namespace,
                persistent=request.mode != mode.NON_PERSISTENT,
                non_persistent=request.mode != mode.PERSISTENT,
            )
            pattern, config = request.topics_pattern, self._broker.config
            is_filtered_here = pattern and config.evaluates_patterns
            filtered = filter_topics(topics, pattern, config.pattern_characters_max) if is_filtered_here else None
            listed = topics if filtered is None else filtered
            hash_ = topics_hash(listed)
            changed = not request.topics_hash or request.topics_hash != hash_
            return command(
                _T.GET_TOPICS_OF_NAMESPACE_RESPONSE,
                request_id=request.request_id,
                topics=listed if changed else [],
                filtered=filtered is not None,
                topics_hash=hash_,
                changed=changed,
            )

        self._answers.later_or_error(work, request.request_id, "topics")

    def on_get_schema(self, request: wire.CommandGetSchema) -> None:
        """GET_SCHEMA: one version of the schema of a topic, or the latest."""

        async def work() -> bytes:
            version = request.schema_version if request.HasField("schema_version") else None
            topic = await self._guard.topic(request.topic, Operation.GET_SCHEMA)
            schema, version = await self._broker.get_schema(topic, version)
            return command(_T.GET_SCHEMA_RESPONSE, request_id=request.request_id, schema=schema, schema_version=version)

        def failed(code: int, text: str) -> bytes:
            return command(_T.GET_SCHEMA_RESPONSE, request_id=request.request_id, error_code=code, error_message=text)

        self._answers.later(work, failed, "get schema")

    def on_get_or_create_schema(self, request: wire.CommandGetOrCreateSchema) -> None:
        """GET_OR_CREATE_SCHEMA: the version of a schema, which is stored if it is new."""

        async def work() -> bytes:
            topic = await self._guard.topic(request.topic, Operation.PUT_SCHEMA)
            version = await self._broker.put_schema(topic, request.schema)
            return command(_T.GET_OR_CREATE_SCHEMA_RESPONSE, request_id=request.request_id, schema_version=version)

        def failed(code: int, text: str) -> bytes:
            return command(
                _T.GET_OR_CREATE_SCHEMA_RESPONSE,
                request_id=request.request_id,
                error_code=code,
                error_message=text,
            )

        self._answers.later(work, failed, "put schema")


def _not_of_transactions(topic: TopicName) -> TopicName:
    """Return *topic*. Raises NotAllowed for the topic by which clients find the coordinators of transactions.

    Java's client takes a refusal of this lookup as final. If only its connect to a coordinator were refused, it would
    try again for ever.
    """
    if topic.base == COORDINATORS:
        raise NotAllowed("Transactions are not enabled.")
    return topic
