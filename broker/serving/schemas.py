"""Which schemas the producers and consumers of a topic may bring, in the terms of Pulsar's protocol."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from broker.errors import BrokerError, IncompatibleSchema, StorageFailure, TopicNotFound
from broker.policies.namespace import NamespacePolicies
from broker.settings.config import BrokerConfig
from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import IncompatibleSchema as RegistryRefused
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.messages_pb2 import KeyValue
from managed_ledger.schemas.compatibility import Schema, SchemaType, Strategy
from managed_ledger.schemas.registry import SchemaPlace
from managed_ledger.schemas.stored import StoredSchema, version_bytes, version_of


class Schemas(Protocol):
    """Keeps schemas (`managed_ledger.schemas.registry.SchemaRegistry`)."""

    async def get(self, schema_id: str, version: int | None = None) -> StoredSchema | None: ...

    async def put_if_absent(
        self, schema_id: str, schema: Schema, strategy: Strategy, *, user: str = "", allow_update: bool = True
    ) -> int: ...

    async def check(self, schema_id: str, schema: Schema, strategy: Strategy, *, by_rule: bool = False) -> None: ...

    async def delete(self, schema_id: str, *, force: bool = False) -> int | None: ...

    async def versions(self, schema_id: str) -> list[StoredSchema]: ...

    async def ledgers(self, schema_id: str) -> list[int]: ...

    async def positions_of_versions(self, schema_id: str) -> list[SchemaPlace]: ...


# What holds for consumers as it stands (`SchemaRegistryServiceImpl.checkConsumerCompatibility`).
_RULES_OF_READERS: Final = (Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE, Strategy.ALWAYS_INCOMPATIBLE)


class SchemaRules:
    """The schemas of topics under the policies of their namespaces."""

    def __init__(self, schemas: Schemas, config: BrokerConfig) -> None:
        self._schemas = schemas
        self._config = config

    async def admit_producer(self, topic: TopicName, schema: wire.Schema | None, policies: NamespacePolicies) -> bytes:
        """Register a producer's schema; returns its version (empty for none). Raises IncompatibleSchema."""
        if schema is not None:
            return await self.register(topic, schema, policies)
        enforced = (policies.schema_validation or self._config.schema_validation) and not topic.is_system
        if enforced and await self._latest(topic) is not None:
            raise IncompatibleSchema(
                "Producers cannot connect or send message without a schema to topics with a schema"
                " when SchemaValidationEnforced is enabled"
            )
        return b""

    async def admit_consumer(
        self, topic: TopicName, schema: wire.Schema, policies: NamespacePolicies, has_been_used: Callable[[], bool]
    ) -> None:
        """Check that a consumer can read with *schema*. A topic without a schema that was never used takes this one;
        one that was used takes any where all schemas are taken, as those of the brokers are.

        *has_been_used* is called once it is known that the topic has no schema. Raises IncompatibleSchema.
        """
        strategy = self._strategy(topic, policies)
        if await self._latest(topic) is None:
            # The brokers follow their own topics with any schema (`_strategy`), and pass over what they cannot read.
            if not has_been_used():
                await self.register(topic, schema, policies)
            elif strategy is not Strategy.ALWAYS_COMPATIBLE:
                raise IncompatibleSchema("Topic does not have a schema to check")
            return
        if strategy is Strategy.ALWAYS_COMPATIBLE:
            return
        if strategy not in _RULES_OF_READERS:
            # A consumer must read data of the latest schema, whatever rule the schemas of producers follow.
            strategy = Strategy.BACKWARD
        try:
            await self._schemas.check(topic.schema_id, _from_wire(schema), strategy, by_rule=True)
        except (ManagedLedgerError, Corruption) as error:
            raise _refusal(error) from error

    async def register(self, topic: TopicName, schema: wire.Schema, policies: NamespacePolicies) -> bytes:
        """The version of *schema*, registered if it is new. Raises IncompatibleSchema, StorageFailure."""
        allow_update = policies.schema_auto_update
        if allow_update is None:
            allow_update = self._config.schema_auto_update
        try:
            version = await self._schemas.put_if_absent(
                topic.schema_id,
                _from_wire(schema),
                self._strategy(topic, policies),
                allow_update=allow_update,
            )
        except (ManagedLedgerError, Corruption) as error:
            raise _refusal(error) from error
        return version_bytes(version)

    async def forget(self, topic: TopicName) -> None:
        """Remove every version of a topic's schema. Raises StorageFailure."""
        try:
            await self._schemas.delete(topic.schema_id, force=True)
        except (ManagedLedgerError, Corruption) as error:
            raise _refusal(error) from error

    async def get(self, topic: TopicName, version: bytes | None) -> tuple[wire.Schema, bytes]:
        """A version of the topic's schema, or the latest. Raises TopicNotFound, IncompatibleSchema."""
        version_number = None
        if version is not None:
            version_number = version_of(version)
            if version_number is None:
                raise IncompatibleSchema("Empty schema version")
        try:
            stored = await self._schemas.get(topic.schema_id, version_number)
        except (ManagedLedgerError, Corruption) as error:
            raise _refusal(error) from error
        if stored is None:
            raise TopicNotFound(f"Topic not found or no-schema {topic}")
        schema = wire.Schema(
            name=topic.schema_id,
            type=int(stored.schema.type),  # type: ignore[arg-type]
            schema_data=stored.schema.data,
            properties=[KeyValue(key=key, value=value) for key, value in stored.schema.properties],
        )
        return schema, version_bytes(stored.version)

    async def _latest(self, topic: TopicName) -> StoredSchema | None:
        try:
            return await self._schemas.get(topic.schema_id)
        except (ManagedLedgerError, Corruption) as error:
            raise _refusal(error) from error

    def _strategy(self, topic: TopicName, policies: NamespacePolicies) -> Strategy:
        if topic.is_system:
            return Strategy.ALWAYS_COMPATIBLE
        return Strategy(policies.schema_strategy or self._config.schema_strategy)


def has_no_schema(schema: wire.Schema) -> bool:
    """Whether *schema* stands for no schema: of type NONE, without a definition."""
    return schema.type == wire.Schema.NoType and not schema.schema_data


def _from_wire(schema: wire.Schema) -> Schema:
    try:
        kind = SchemaType(schema.type)
    except ValueError:
        raise IncompatibleSchema(f"Schema type {schema.type} is not served here") from None
    properties: Mapping[str, str] = {item.key: item.value for item in schema.properties}
    return Schema(kind, schema.schema_data, tuple(properties.items()))


def _refusal(error: Exception) -> BrokerError:
    if isinstance(error, RegistryRefused):
        return IncompatibleSchema(str(error))
    return StorageFailure(str(error))
