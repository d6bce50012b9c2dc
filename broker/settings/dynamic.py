"""Settings that are changed while brokers run: one record for all brokers of the cluster, which each of them watches.

    /admin/configuration      {"name": "value", …}, as Apache's brokers keep it

Rules:

1. Only settings in DYNAMIC are changed: each of them is read anew whenever it is used, or applied by `Broker`.
2. A value that another program has stored and that is not valid here is not applied, and is logged; the others are.
3. A setting that is removed from the record has the value again with which the broker was started.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from broker.records.json_records import InvalidRecord, parse_record, to_json
from broker.settings.config import BrokerConfig, change_in_use
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, Cancel, MetadataStore, VersionConflict
from magnetar_core.runtime.config import HIDDEN, load
from magnetar_core.runtime.tasks import Tasks, attempt
from magnetar_core.runtime.types import ConfigurationError, Corruption

log = logging.getLogger(__name__)

PATH: Final = "/admin/configuration"

_NAMES: Final = """
    allowAutoSubscriptionCreation allowAutoTopicCreation allowAutoTopicCreationType autoSkipNonRecoverableData
    brokerClientAuthenticationParameters brokerClientAuthenticationPlugin brokerClientTlsEnabled
    brokerDeleteInactivePartitionedTopicMetadataEnabled brokerDeleteInactiveTopicsEnabled
    brokerDeleteInactiveTopicsFrequencySeconds brokerDeleteInactiveTopicsMaxInactiveDurationSeconds
    brokerDeleteInactiveTopicsMode brokerPublisherThrottlingMaxByteRate brokerPublisherThrottlingMaxMessageRate
    brokerShutdownTimeoutMs defaultNamespaceBundleSplitAlgorithm defaultNumPartitions defaultNumberOfNamespaceBundles
    dispatchThrottlingOnNonBacklogConsumerEnabled dispatchThrottlingRatePerSubscriptionInByte
    dispatchThrottlingRatePerSubscriptionInMsg dispatchThrottlingRatePerTopicInByte dispatchThrottlingRatePerTopicInMsg
    dispatcherMaxReadBatchSize dispatcherMaxReadSizeBytes dispatcherMaxRoundRobinBatchSize
    dispatcherPauseOnAckStatePersistentEnabled failureDomainsEnabled forceDeleteNamespaceAllowed
    forceDeleteTenantAllowed isAllowAutoUpdateSchemaEnabled loadBalancerAutoBundleSplitEnabled
    loadBalancerAutoUnloadSplitBundlesEnabled loadBalancerAverageResourceUsageDifferenceThresholdPercentage
    loadBalancerAvgShedderHighThreshold loadBalancerAvgShedderHitCountHighThreshold
    loadBalancerAvgShedderHitCountLowThreshold loadBalancerAvgShedderLowThreshold loadBalancerBandwidthInResourceWeight
    loadBalancerBandwidthOutResourceWeight loadBalancerBandwithInResourceWeight loadBalancerBandwithOutResourceWeight
    loadBalancerBrokerMaxTopics loadBalancerBrokerOverloadedThresholdPercentage
    loadBalancerBrokerThresholdShedderPercentage loadBalancerBundleUnloadMinThroughputThreshold
    loadBalancerCPUResourceWeight loadBalancerDirectMemoryResourceWeight loadBalancerDistributeBundlesEvenlyEnabled
    loadBalancerHistoryResourcePercentage loadBalancerLoadSheddingStrategy
    loadBalancerMaxNumberOfBundlesInBundleLoadReport loadBalancerMsgRateDifferenceShedderThreshold
    loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold loadBalancerNamespaceBundleMaxBandwidthMbytes
    loadBalancerNamespaceBundleMaxMsgRate loadBalancerNamespaceBundleMaxSessions loadBalancerNamespaceBundleMaxTopics
    loadBalancerNamespaceMaximumBundles loadBalancerReportUpdateMaxIntervalMinutes
    loadBalancerReportUpdateMinIntervalMillis loadBalancerReportUpdateThresholdPercentage loadBalancerSheddingEnabled
    loadBalancerSheddingGracePeriodMinutes loadBalancerSheddingIntervalMinutes managedLedgerCacheSizeMB
    managedLedgerForceRecovery managedLedgerInactiveLedgerRolloverTimeSeconds maxConcurrentLookupRequest
    maxConcurrentTopicLoadRequest maxMessagePublishBufferSizeInMB maxNamespacesPerTenant
    maxNumPartitionsPerPartitionedTopic maxPublishRatePerTopicInBytes maxPublishRatePerTopicInMessages maxTenants
    maxTopicsPerNamespace maxUnloadBundleNumPerShedding maxUnloadPercentage minUnloadMessage minUnloadMessageThroughput
    subscribeRatePeriodPerConsumerInSecond subscribeThrottlingRatePerConsumer subscriptionKeySharedEnable
    subscriptionTypesEnabled superUserRoles supportedNamespaceBundleSplitAlgorithms
"""
DYNAMIC: Final = frozenset(_NAMES.split())
"""Names that may be changed; all of them may be with Apache's brokers, too."""

# How often a change is tried while others change the record.
ATTEMPTS: Final = 10


class NotDynamic(InvalidRecord):
    """The setting cannot be changed while brokers run."""


class DynamicSettings:
    """Keeps *config*, which all parts of a broker share, as the record says."""

    def __init__(
        self, config: BrokerConfig, store: MetadataStore, applied: Callable[[], Awaitable[None]], tasks: Tasks
    ) -> None:
        """*applied* is called after settings have changed."""
        self._config = config
        self._store = store
        self._applied = applied
        self._tasks = tasks
        fields = _fields_of(config)
        self._fields = {name: fields[name] for name in DYNAMIC}
        self._secret = DYNAMIC & {
            field.metadata["name"] for field in dataclasses.fields(config) if field.metadata.get("secret")
        }
        self._started_with = {name: getattr(config, field) for name, field in self._fields.items()}
        self._texts: dict[str, str] = {}
        self._cancel: Cancel | None = None
        self._turn = asyncio.Lock()

    @property
    def values(self) -> Mapping[str, str]:
        """What the record says, as far as it is applied; secrets are hidden."""
        return {name: HIDDEN if name in self._secret else text for name, text in self._texts.items()}

    async def start(self) -> None:
        """Apply the record, and watch it. Raises MetadataError, Corruption."""
        self._cancel = self._store.watch_node(PATH, self._on_change)
        await self._apply_record()

    def close(self) -> None:
        """Watch no more."""
        if self._cancel is not None:
            self._cancel()

    def _on_change(self) -> None:
        self._tasks.spawn(attempt(f"{PATH}: applying changed settings", self._apply_record()), "settings")

    async def set(self, name: str, text: str) -> None:
        """Raises NotDynamic, InvalidRecord, MetadataError, Corruption."""
        if name not in DYNAMIC:
            raise NotDynamic(f"Can't update non-dynamic configuration {name}; see GET brokers/configuration")
        parse(self._config, {name: text})
        await self._change(lambda old: {**old, name: text})

    async def remove(self, name: str) -> None:
        """Raises NotDynamic, MetadataError, Corruption."""
        if name not in DYNAMIC:
            raise NotDynamic(f"Can't delete non-dynamic configuration {name}; see GET brokers/configuration")
        await self._change(lambda old: {key: value for key, value in old.items() if key != name})

    async def _change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Change the record of the dynamic settings, and use it. Raises InvalidRecord, MetadataError."""
        for _ in range(ATTEMPTS):
            node = await self._store.get(PATH)
            old = {} if node is None else parse_record(node)
            try:
                await self._store.put(PATH, to_json(change(old)), NO_NODE if node is None else node.version)
            except VersionConflict:
                continue
            await self._apply_record()
            return
        raise InvalidRecord(f"{PATH} was changed by others at the same time; try again")

    async def _apply_record(self) -> None:
        """Use what the record says; what it does not name gets back the value that the broker was started with."""
        async with self._turn:
            node = await self._store.get(PATH)
            record = {} if node is None else parse_record(node)
            texts = {name: str(value) for name, value in record.items() if name in DYNAMIC}
            new_values, applied_texts = dict(self._started_with), {}
            for name, text in texts.items():
                try:
                    new_values[name] = parse(self._config, {name: text})[name]
                except InvalidRecord as error:
                    shown = HIDDEN if name in self._secret else text
                    log.error("%s: %s=%s is not applied: %s", PATH, name, shown, error)
                    continue
                applied_texts[name] = text
            self._texts = applied_texts
            changes = {
                self._fields[name]: value
                for name, value in new_values.items()
                if getattr(self._config, self._fields[name]) != value
            }
            if changes:
                log.info("settings change: %s", ", ".join(self._shown(changes)))
                change_in_use(self._config, changes)
                await self._applied()

    def _shown(self, changes: Mapping[str, Any]) -> Iterator[str]:
        hidden = {self._fields[name] for name in self._secret}
        for field, value in changes.items():
            yield f"{field}={HIDDEN if field in hidden else value}"


def parse(config: BrokerConfig, texts: Mapping[str, str]) -> dict[str, Any]:
    """The values of settings, by their names, if *config* may have them. Raises InvalidRecord."""
    fields = _fields_of(config)
    try:
        loaded = load(BrokerConfig, texts)
        values = {name: getattr(loaded, fields[name]) for name in texts}
        changed = dataclasses.replace(config, **{fields[name]: values[name] for name in texts})
        problems = [problem for problem in changed.problems() if problem not in config.problems()]
    except (ConfigurationError, Corruption) as error:
        raise InvalidRecord(f" Invalid dynamic-config value: {error}") from None
    if problems:
        raise InvalidRecord(f" Invalid dynamic-config value: {'; '.join(problems)}")
    return values


def _fields_of(config: BrokerConfig) -> dict[str, str]:
    """Name of a setting → name of its field."""
    return {field.metadata["name"]: field.name for field in dataclasses.fields(config) if "name" in field.metadata}
