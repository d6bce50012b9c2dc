"""Settings of Apache's brokers that this one does not have, with the values that Apache ships. No IO.

With these values they are accepted, so that Apache's `broker.conf` and `standalone.conf` can be used as they are: what
they leave on is there without them, and what they leave off is not there. Any other value is refused, since the broker
would not do what it says. Those of other load managers than ModularLoadManagerImpl are told apart: the load manager is
there, they are not its settings with Apache's brokers either.
"""

from collections.abc import Iterator, Mapping
from typing import Final

# Of Pulsar 4.0.8; a name stands twice where the two files differ. What is in neither file has the value that a running
# broker tells (tests/vectors/http/017).
_SHIPPED: Final = """
additionalServletDirectory=./brokerAdditionalServlet
additionalServlets=
additionalSystemCursorNames=
aggregatePublisherStatsByProducerName=false
allowAclChangesOnNonExistentTopics=false
allowOverrideEntryFilters=false
bindAddresses=
bookkeeperClientAuthenticationParameters=
bookkeeperClientAuthenticationParametersName=
bookkeeperClientExposeStatsToPrometheus=false
bookkeeperClientGetBookieInfoIntervalSeconds=86400
bookkeeperClientGetBookieInfoRetryIntervalSeconds=60
bookkeeperClientLimitStatsLogging=true
bookkeeperClientMinAvailableBookiesInIsolationGroups=
bookkeeperClientQuarantineRatio=1.0
bookkeeperClientSeparatedIoThreadsEnabled=false
bookkeeperClientThrottleValue=0
bookkeeperDiskWeightBasedPlacementEnabled=false
bootstrapNamespaces=
brokerClientSslFactoryPlugin=org.apache.pulsar.common.util.DefaultPulsarSslFactory
brokerClientSslFactoryPluginParams=
brokerDeduplicationSnapshotFrequencyInSeconds=120
brokerEntryPayloadProcessors=
brokerInterceptorsDirectory=./interceptors
brokerPublisherThrottlingTickTimeMillis=50
brokerServicePurgeInactiveFrequencyInSeconds=60
cacheEvictionByMarkDeletedPosition=false
clusterMigrationAutoResourceCreation=false
clusterMigrationCheckDurationSeconds=0
compactionServiceFactoryClassName=org.apache.pulsar.compaction.PulsarCompactionServiceFactory
configurationMetadataSyncEventTopic=
configurationStoreConfigPath=
configurationStoreServers=
createTopicToRemoteClusterForReplication=true
delayedDeliveryMaxIndexesPerBucketSnapshotSegment=5000
delayedDeliveryMaxNumBuckets=-1
delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds=300
delayedDeliveryMinIndexCountPerBucket=50000
disableBrokerInterceptors=true
dispatcherEntryFilterRescheduledMessageDelay=1000
dispatcherRetryBackoffInitialTimeInMs=1
dispatcherRetryBackoffMaxTimeInMs=10
dispatchRateLimiterFactoryClassName=\
org.apache.pulsar.broker.service.persistent.DispatchRateLimiterFactoryAsyncTokenBucket
dispatchThrottlingForFilteredEntriesEnabled=false
dispatchThrottlingOnBatchMessageEnabled=false
dispatchThrottlingRateInByte=0
dispatchThrottlingRateInMsg=0
dispatchThrottlingRatePerReplicatorInByte=0
dispatchThrottlingRatePerReplicatorInMsg=0
dispatchThrottlingRateRelativeToPublishRate=false
enableNamespaceIsolationUpdateOnTime=false
enablePackagesManagement=false
entryFiltersDirectory=
exposeBundlesMetricsInPrometheus=false
exposePublisherStats=true
fileSystemProfilePath=conf/filesystem_offload_core_site.xml
fileSystemURI=
flowOrQpsDifferenceThresholdPercentage=10
functionsWorkerEnablePackageManagement=false
functionsWorkerServiceNarPackage=
gcsManagedLedgerOffloadBucket=
gcsManagedLedgerOffloadMaxBlockSizeInBytes=134217728
gcsManagedLedgerOffloadReadBufferSizeInBytes=1048576
gcsManagedLedgerOffloadRegion=
gcsManagedLedgerOffloadServiceAccountKeyFile=
globalZookeeperServers=
healthCheckMetricsUpdateTimeInSeconds=-1
httpMaxRequestSize=-1
httpRequestsFailOnUnknownPropertiesEnabled=false
httpServerAcceptQueueSize=8192
httpServerGzipCompressionExcludedPaths=
httpServerThreadPoolQueueSize=8192
inflightSaslContextExpiryMs=30000
isRunningStandalone=
jvmGCMetricsLoggerClassName=
keySharedUnblockingIntervalMs=10
kinitCommand=/usr/bin/kinit
lazyCursorRecovery=false
loadBalancerBrokerComfortLoadLevelPercentage=65
loadBalancerBrokerLoadDataTTLInSeconds=1800
loadBalancerBrokerLoadTargetStd=0.25
loadBalancerBrokerUnderloadedThresholdPercentage=50
loadBalancerDebugModeEnabled=false
loadBalancerInFlightServiceUnitStateWaitingTimeInMillis=30000
loadBalancerMaxNumberOfBrokerSheddingPerCycle=3
loadBalancerMaxNumberOfBundlesToSplitPerCycle=10
loadBalancerMemoryResourceWeight=0
loadBalancerMultiPhaseBundleUnload=true
loadBalancerNamespaceBundleSplitConditionHitCountThreshold=3
loadBalancerPlacementStrategy=leastLoadedServer
loadBalancerServiceUnitStateMaxConcurrentOverrides=64
loadBalancerServiceUnitStateMonitorIntervalInSeconds=60
loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds=3600
loadBalancerServiceUnitTableViewSyncer=None
loadBalancerSheddingBundlesWithPoliciesEnabled=false
loadBalancerSheddingConditionHitCountThreshold=3
loadBalancerSplitIntervalMinutes=1
loadBalancerTransferEnabled=true
loadBalanceSheddingDelayInSeconds=180
loadManagerServiceUnitStateTableViewClassName=\
org.apache.pulsar.broker.loadbalance.extensions.channel.ServiceUnitStateTableViewImpl
lookupPropertyPrefix=lookup.
managedCursorInfoCompressionThresholdInBytes=16384
managedCursorInfoCompressionType=NONE
managedLedgerCursorPositionFlushSeconds=60
managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis=60000
managedLedgerDataReadPriority=tiered-storage-first
managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds=600
managedLedgerInfoCompressionThresholdInBytes=16384
managedLedgerInfoCompressionType=NONE
managedLedgerMaxAckQuorum=5
managedLedgerMaxBacklogBetweenCursorsForCaching=1000
managedLedgerMaxBatchDeletedIndexToPersist=10000
managedLedgerMaxEnsembleSize=5
managedLedgerMaxReadsInFlightPermitsAcquireQueueSize=50000
managedLedgerMaxReadsInFlightPermitsAcquireTimeoutMillis=60000
managedLedgerMaxUnackedRangesToPersistInZooKeeper=-1
managedLedgerMaxWriteQuorum=5
managedLedgerMinimumBacklogCursorsForCaching=0
managedLedgerMinimumBacklogEntriesForCaching=1000
managedLedgerNewEntriesCheckDelayInMillis=10
managedLedgerOffloadAutoTriggerSizeThresholdBytes=-1
managedLedgerOffloadBucket=
managedLedgerOffloadDeletionLagMs=14400000
managedLedgerOffloadMaxThreads=2
managedLedgerOffloadPrefetchRounds=1
managedLedgerOffloadReadThreads=2
managedLedgerOffloadThresholdInSeconds=-1
managedLedgerPassword=
managedLedgerPersistIndividualAckAsLongArray=false
managedLedgerStorageClassName=org.apache.pulsar.broker.ManagedLedgerClientFactory
managedLedgerTraceTaskExecution=true
maxActiveTransactionsPerCoordinator=0
maxConsumerMetadataSize=1024
maxInflightSaslContext=50000
maxSecondsToClearTopicNameCache=7200
metadataStoreAllowReadOnlyOperations=false
metadataStoreConfigPath=
metadataSyncEventTopic=
metricsBufferResponse=false
metricsServletTimeoutMs=30000
namespaceBundleUnloadingTimeoutMs=60000
narExtractionDirectory=
numAcceptorThreads=
numTransactionReplayThreadPoolSize=2
numWorkerThreadsForNonPersistentTopic=
numWorkerThreadsForNonPersistentTopic=8
offloadersDirectory=./offloaders
packagesManagementLedgerRootPath=/ledgers
packagesManagementStorageProvider=\
org.apache.pulsar.packages.management.storage.bookkeeper.BookKeeperPackagesStorageProvider
packagesReplicas=1
preferLaterVersions=false
protocolHandlerDirectory=./protocols
pulsarChannelPauseReceivingCooldownMs=5000
pulsarChannelPauseReceivingCooldownRateLimitPeriodMs=10
pulsarChannelPauseReceivingCooldownRateLimitPermits=5
pulsarChannelPauseReceivingRequestsIfUnwritable=false
pulsarChannelWriteBufferHighWaterMark=65536
pulsarChannelWriteBufferLowWaterMark=32768
replicatedSubscriptionsSnapshotFrequencyMillis=1000
replicatedSubscriptionsSnapshotMaxCachedPerSubscription=10
replicatedSubscriptionsSnapshotTimeoutSeconds=30
replicationPolicyCheckDurationSeconds=600
replicationStartAt=latest
replicationTlsEnabled=false
s3ManagedLedgerOffloadBucket=
s3ManagedLedgerOffloadMaxBlockSizeInBytes=67108864
s3ManagedLedgerOffloadReadBufferSizeInBytes=1048576
s3ManagedLedgerOffloadRegion=
s3ManagedLedgerOffloadServiceEndpoint=
schemaLedgerForceRecovery=false
schemaRegistryCompatibilityCheckers=\
org.apache.pulsar.broker.service.schema.JsonSchemaCompatibilityCheck,\
org.apache.pulsar.broker.service.schema.AvroSchemaCompatibilityCheck,\
org.apache.pulsar.broker.service.schema.ProtobufNativeSchemaCompatibilityCheck
sslFactoryPlugin=org.apache.pulsar.common.util.DefaultPulsarSslFactory
sslFactoryPluginParams=
strictlyVerifySubscriptionName=false
subscriptionRedeliveryTrackerEnabled=true
systemTopicSchemaCompatibilityStrategy=ALWAYS_COMPATIBLE
topicBundleAssignmentStrategy=org.apache.pulsar.common.naming.ConsistentHashingTopicBundleAssigner
topicCompactionRetainNullKey=false
topicFactoryClassName=
topicFencingTimeoutSeconds=0
topicNameCacheMaxCapacity=100000
topicOrderedExecutorThreadNum=
topicOrderedExecutorThreadNum=8
topicPoliciesServiceClassName=org.apache.pulsar.broker.service.SystemTopicBasedTopicPoliciesService
topicPublisherThrottlingTickTimeMillis=10
topicPublisherThrottlingTickTimeMillis=2
topicsPatternRegexImplementation=RE2J_WITH_JDK_FALLBACK
transactionBufferClientMaxConcurrentRequests=1000
transactionBufferClientOperationTimeoutInMills=3000
transactionBufferProviderClassName=org.apache.pulsar.broker.transaction.buffer.impl.TopicTransactionBufferProvider
transactionBufferSegmentedSnapshotEnabled=false
transactionBufferSnapshotMaxTransactionCount=1000
transactionBufferSnapshotMinTimeInMillis=5000
transactionBufferSnapshotSegmentSize=262144
transactionLogBatchedWriteEnabled=false
transactionLogBatchedWriteMaxDelayInMillis=1
transactionLogBatchedWriteMaxRecords=512
transactionLogBatchedWriteMaxSize=4194304
transactionMetadataStoreProviderClassName=\
org.apache.pulsar.transaction.coordinator.impl.MLTransactionMetadataStoreProvider
transactionPendingAckBatchedWriteEnabled=false
transactionPendingAckBatchedWriteMaxDelayInMillis=1
transactionPendingAckBatchedWriteMaxRecords=512
transactionPendingAckBatchedWriteMaxSize=4194304
transactionPendingAckLogIndexMinLag=500
transactionPendingAckStoreProviderClassName=\
org.apache.pulsar.broker.transaction.pendingack.impl.MLPendingAckStoreProvider
triggerOffloadOnTopicLoad=false
useSeparateThreadPoolForProtocolHandlers=true
webServiceLogDetailedAddresses=
webServiceTrustXForwardedFor=false
webSocketConnectionsPerBroker=
webSocketConnectionsPerBroker=8
webSocketMaxTextFrameSize=1048576
webSocketNumServiceThreads=
webSocketPingDurationSeconds=-1
webSocketPulsarClientMemoryLimitInMB=0
webSocketSessionIdleTimeoutMillis=300000
zooKeeperAllowReadOnlyOperations=false
zookeeperServers=
"""


def _read(text: str) -> dict[str, frozenset[str]]:
    values: dict[str, frozenset[str]] = {}
    for line in text.split():
        name, _, value = line.partition("=")
        values[name] = values.get(name, frozenset()) | {value}
    return values


SHIPPED: Final[Mapping[str, frozenset[str]]] = _read(_SHIPPED)
"""Name → the values that are accepted."""


_EXTENSIBLE: Final = """
loadBalancerBrokerLoadDataTTLInSeconds loadBalancerBrokerLoadTargetStd loadBalancerDebugModeEnabled
loadBalancerInFlightServiceUnitStateWaitingTimeInMillis loadBalancerMaxNumberOfBrokerSheddingPerCycle
loadBalancerMaxNumberOfBundlesToSplitPerCycle loadBalancerMultiPhaseBundleUnload
loadBalancerNamespaceBundleSplitConditionHitCountThreshold loadBalancerServiceUnitStateMaxConcurrentOverrides
loadBalancerServiceUnitStateMonitorIntervalInSeconds loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds
loadBalancerServiceUnitTableViewSyncer loadBalancerSheddingBundlesWithPoliciesEnabled
loadBalancerSheddingConditionHitCountThreshold loadBalancerSplitIntervalMinutes loadBalancerTransferEnabled
loadBalanceSheddingDelayInSeconds loadManagerServiceUnitStateTableViewClassName
"""
_SIMPLE: Final = """
loadBalancerBrokerComfortLoadLevelPercentage loadBalancerBrokerUnderloadedThresholdPercentage
loadBalancerMemoryResourceWeight loadBalancerPlacementStrategy
"""

OTHER_LOAD_MANAGERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_EXTENSIBLE.split(), "ExtensibleLoadManagerImpl"),
    **dict.fromkeys(_SIMPLE.split(), "SimpleLoadManagerImpl, or of older versions"),
}
"""Name → whose setting it is; the load manager here is as Apache's ModularLoadManagerImpl."""

assert OTHER_LOAD_MANAGERS.keys() <= SHIPPED.keys(), "they are accepted at Apache's values"


def problems(values: Mapping[str, str]) -> Iterator[str]:
    """One for each of *values* that is of such a setting and is not accepted."""
    for name, value in values.items():
        accepted = SHIPPED.get(name)
        if accepted is not None and value.strip().lower() not in {one.lower() for one in accepted}:
            shown = " or ".join(one or "nothing" for one in sorted(accepted))
            told = "=*****" if name.endswith("Password") else f"={value}"
            whose = OTHER_LOAD_MANAGERS.get(name)
            why = "" if whose is None else f", it is one of {whose} and this load manager is as ModularLoadManagerImpl"
            yield f"{name}{told}: this broker does not have the setting{why}; leave it at what Apache ships, {shown}"
