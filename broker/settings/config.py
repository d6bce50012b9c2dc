"""The settings of a broker, under Apache's names (`broker.conf`, `standalone.conf`).

A feature that this broker does not have is refused when it is switched on, since somebody relies on it
(`REFUSED_WHEN_ON`). A setting that tunes a Java process is accepted and has no effect
(`APACHE_SETTINGS_WITHOUT_EFFECT`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from broker.settings import shipped as apache_settings
from broker.settings.quotas import (
    DELETE_MODES,
    HOLD,
    NO_SUBSCRIPTIONS,
    QUOTA_POLICIES,
    BacklogQuota,
    DispatchRate,
    InactiveTopics,
    PublishRate,
    SubscribeRate,
)
from magnetar_core.bookkeeper.client.deciding.quorum import ENSEMBLE_SIZE_MAX
from magnetar_core.bookkeeper.client.placing import regions
from magnetar_core.bookkeeper.client.placing.topology import RACKS_MIN
from magnetar_core.runtime.config import ENVIRONMENT_PREFIX, load, loop_stall_setting, processes_setting, setting
from magnetar_core.runtime.http.hosts import names_setting
from magnetar_core.runtime.types import MIB, ConfigurationError
from magnetar_core.security.authentication import BASIC, TLS, TOKEN
from magnetar_core.security.identity import DEFAULT_ALGORITHM, DEFAULT_CLAIM
from magnetar_core.security.tls.files import (
    APACHE_FACTORY,
    PROTOCOLS,
    REFRESH_S,
    STORE_TYPES,
    TlsFiles,
    directory_files,
    openssl_ciphers,
    protocol_problems,
    store_problem,
    store_type_problem,
)

SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
DIGEST_TYPES: Final = ("CRC32", "CRC32C", "MAC", "DUMMY")
COMPATIBILITY_STRATEGIES: Final = (
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)
PERMISSIONS_PROVIDER: Final = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"
TIMESTAMP_INTERCEPTOR: Final = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
INDEX_INTERCEPTOR: Final = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"

OPENID: Final = "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID"

# Apache's classes of authentication providers, and the method that each of them checks.
PROVIDERS: Final = {
    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken": TOKEN,
    "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic": BASIC,
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls": TLS,
    OPENID: TOKEN,
}

# Apache's classes by which a client shows who it is, and their methods.
CLIENT_PLUGINS: Final = {
    "org.apache.pulsar.client.impl.auth.AuthenticationToken": TOKEN,
    "org.apache.pulsar.client.impl.auth.AuthenticationBasic": BASIC,
    "org.apache.pulsar.client.impl.auth.AuthenticationTls": TLS,
    "org.apache.pulsar.client.impl.auth.AuthenticationKeyStoreTls": TLS,
}

# The one of them whose certificate is in a key store.
KEY_STORE_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationKeyStoreTls"

LOAD_CLASSES: Final = "org.apache.pulsar.broker.loadbalance.impl."
"""The package of Apache's strategies, which are known by the names of their classes."""

ONE_BUNDLE: Final = "OneBundleAtATime"
"""This load manager's own strategy (`broker.ownership.load.balancing`)."""

SHEDDING_STRATEGIES: Final = (
    ONE_BUNDLE,
    *(f"{LOAD_CLASSES}{one}" for one in ("ThresholdShedder", "OverloadShedder", "UniformLoadShedder", "AvgShedder")),
)
PLACEMENT_STRATEGIES: Final = tuple(
    f"{LOAD_CLASSES}{one}"
    for one in ("LeastLongTermMessageRate", "LeastResourceUsageWithWeight", "RoundRobinBrokerSelector", "AvgShedder")
)

# Apache's names for the ways to cut a bundle (`broker.ownership.splitting`).
SPLIT_ALGORITHMS: Final = (
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "flow_or_qps_equally_divide",
)

# The smallest message size that still leaves room for what clients put around a message.
MESSAGE_BYTES_MIN: Final = 1024

# A message is one buffer in every process that handles it. With its headers its length must stay within 31 bits, in
# which protobuf and gRPC keep it.
MESSAGE_BYTES_MAX: Final = 1024 * 1024 * 1024

# Each bundle has a node with its owner in the metadata store. (Apache has the same maximum.)
BUNDLES_MAX: Final = 4_096

# Each partition is a topic with its own ledgers; a number mistyped by two digits would fill the metadata store.
PARTITIONS_MAX: Final = 10_000


_STORES: Final = " or ".join(STORE_TYPES)

# What a broker does whose session with the metadata store has ended, or may have.
RECONNECT: Final = "reconnect"
SHUTDOWN: Final = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker. Times end in their unit; sizes of messages are bytes."""

    # Ports.
    service_port: int | None = setting("brokerServicePort", 6650, help="port of the binary protocol; 0 = any free one")
    service_port_tls: int | None = setting("brokerServicePortTls", None, help="port of the binary protocol over TLS")
    web_port: int | None = setting("webServicePort", 8080, help="port of the HTTP admin API; 0 = any free one")
    web_port_tls: int | None = setting("webServicePortTls", None, help="port of the HTTP admin API over TLS")
    grpc_port: int | None = setting("grpcServicePort", None, help="port of the topic API over gRPC; 0 = any free one")
    grpc_port_tls: int | None = setting("grpcServicePortTls", None, help="port of the topic API over gRPC, with TLS")
    processes: int = processes_setting()
    bind_address: str = setting("bindAddress", "0.0.0.0", help="address that the ports are opened on")
    advertised_address: str | None = setting(
        "advertisedAddress", None, help="host name that clients are told; default: the address bound"
    )
    advertised_listeners: str = setting(
        "advertisedListeners", "", help="name:pulsar://host:port, comma separated: addresses for named listeners"
    )
    internal_listener_name: str = setting(
        "internalListenerName", "", help="the advertised listener for clients that name none"
    )

    # TLS at the ports above.
    tls_certificate: str = setting("tlsCertificateFilePath", "", help="the broker's certificate and its chain, PEM")
    tls_key: str = setting("tlsKeyFilePath", "", help="the key of that certificate, PEM")
    tls_trusted: str = setting(
        "tlsTrustCertsFilePath",
        "",
        help="trusted certificates, PEM: a client's certificate needs one of them behind it",
    )
    tls_with_key_store: bool = setting(
        "tlsEnabledWithKeyStore", False, help="Java's key stores (PKCS#12) are read instead of these PEM files"
    )
    tls_key_store_type: str = setting("tlsKeyStoreType", "JKS", help=f"{_STORES}: the file itself says what it is")
    tls_key_store: str = setting("tlsKeyStore", "", help="the broker's key with its certificate and its chain")
    tls_key_store_password: str = setting("tlsKeyStorePassword", "", help="its password", secret=True)
    tls_trust_store_type: str = setting("tlsTrustStoreType", "JKS", help=_STORES)
    tls_trust_store: str = setting("tlsTrustStore", "", help="trusted certificates, as tlsTrustCertsFilePath")
    tls_trust_store_password: str = setting("tlsTrustStorePassword", "", help="its password", secret=True)
    tls_client_required: bool = setting(
        "tlsRequireTrustedClientCertOnConnect", False, help="clients without a trusted certificate are refused"
    )
    tls_insecure: bool = setting(
        "tlsAllowInsecureConnection", False, help="clients are not asked for certificates, so none needs to be trusted"
    )
    tls_protocols: tuple[str, ...] = setting("tlsProtocols", (), help=f"some of {', '.join(PROTOCOLS)}; empty: all")
    tls_ciphers: tuple[str, ...] = setting("tlsCiphers", (), help="suites of TLS 1.2; empty: the library's choice")
    web_tls_protocols: tuple[str, ...] = setting("webServiceTlsProtocols", (), help="at HTTPS; empty: tlsProtocols")
    web_tls_ciphers: tuple[str, ...] = setting("webServiceTlsCiphers", (), help="at HTTPS; empty: tlsCiphers")
    tls_refresh_s: int = setting(
        "tlsCertRefreshCheckDurationSec",
        REFRESH_S,
        help="seconds between two checks whether the files have changed; 0: no checks",
    )
    tls_enabled: bool = setting(
        "tlsEnabled", False, help="an older name for TLS at the ports; true needs one of the ports for TLS"
    )

    # Who clients are.
    authentication_enabled: bool = setting("authenticationEnabled", False, help="clients must show who they are")
    authentication_providers: tuple[str, ...] = setting(
        "authenticationProviders", (), help=f"some of {', '.join(PROVIDERS)}"
    )
    anonymous_role: str = setting("anonymousUserRole", "", help="the role of clients that show nothing; empty: refused")
    proxy_roles: tuple[str, ...] = setting("proxyRoles", (), help="roles that ask for others: proxies")
    authenticate_original: bool = setting(
        "authenticateOriginalAuthData", False, help="what a proxy's client showed is checked here too"
    )
    authentication_refresh_s: int = setting(
        "authenticationRefreshCheckSeconds",
        60,
        help="how often it is checked whether clients' credentials have expired; they have as long to renew them",
    )
    authenticate_metrics: bool = setting(
        "authenticateMetricsEndpoint", False, help="/metrics is for authenticated clients only"
    )
    token_secret_key: str = setting(
        "tokenSecretKey", "", help="secret of HS tokens: file:///PATH, data:;base64,…, or a path", secret=True
    )
    token_public_key: str = setting(
        "tokenPublicKey",
        "",
        help="public key of RS and ES tokens (DER or PEM): file:///PATH, data:;base64,…, or a path",
    )
    token_public_algorithm: str = setting("tokenPublicAlg", DEFAULT_ALGORITHM, help="algorithm of tokenPublicKey")
    token_claim: str = setting("tokenAuthClaim", "", help=f"claim that names the role; empty: {DEFAULT_CLAIM}")
    token_audience_claim: str = setting(
        "tokenAudienceClaim", "", help="claim that must hold tokenAudience; empty: not looked at"
    )
    token_leeway_s: int = setting(
        "tokenAllowedClockSkewSeconds", 0, help="tokens are taken so much before their time, and after it"
    )
    token_audience: str = setting("tokenAudience", "", help="audience that tokens must be for")
    openid_issuers: tuple[str, ...] = setting(
        "openIDAllowedTokenIssuers", (), help="issuers whose tokens AuthenticationProviderOpenID takes, comma separated"
    )
    openid_audiences: tuple[str, ...] = setting(
        "openIDAllowedAudiences", (), help="a token of theirs must be for one of these audiences"
    )
    openid_keys: tuple[str, ...] = setting(
        "openIDIssuerKeyFiles", (), help="issuer=PATH,…: the keys (JWKS) of these issuers are read from files"
    )
    openid_trusted: str = setting(
        "openIDTokenIssuerTrustCertsFilePath", "", help="certificates of the issuers; empty: those of this machine"
    )
    openid_claim: str = setting("openIDRoleClaim", DEFAULT_CLAIM, help="claim that names the role")
    openid_leeway_s: int = setting(
        "openIDAcceptedTimeLeewaySeconds", 0, help="tokens count as valid for so much longer, and earlier", least=0
    )
    openid_refresh_s: int = setting(
        "openIDCacheRefreshAfterWriteSeconds", 18 * 60 * 60, help="keys are fetched again after so long", least=1
    )
    openid_expiry_s: int = setting(
        "openIDCacheExpirationSeconds", 24 * 60 * 60, help="keys are not used any longer", least=1
    )
    openid_miss_s: int = setting(
        "openIDKeyIdCacheMissRefreshSeconds",
        5 * 60,
        help="how long after a fetch an unknown key id does not cause another",
        least=0,
    )
    openid_connect_ms: int = setting(
        "openIDHttpConnectionTimeoutMillis", 10_000, help="to connect to an issuer", least=1
    )
    openid_read_ms: int = setting("openIDHttpReadTimeoutMillis", 10_000, help="for an answer of an issuer", least=1)
    openid_discovery: str = setting(
        "openIDFallbackDiscoveryMode", "DISABLED", help="DISABLED: no other issuer is ever asked"
    )
    openid_https: bool = setting(
        "openIDRequireIssuersUseHttps", True, help="issuers have addresses with https; false is for tests"
    )
    basic_users: str = setting(
        "basicAuthConf", "", help="users as `htpasswd` writes them: a path, data:;base64,… or base64", secret=True
    )

    # As whom this broker asks others over HTTP.
    broker_client_plugin: str = setting(
        "brokerClientAuthenticationPlugin", "", help=f"nothing or one of {', '.join(CLIENT_PLUGINS)}"
    )
    broker_client_parameters: str = setting(
        "brokerClientAuthenticationParameters",
        "",
        help="token:TOKEN, file:///PATH, or JSON of userId and password, of tlsCertFile and tlsKeyFile, or of "
        "keyStorePath and keyStorePassword",
        secret=True,
    )
    broker_client_tls: bool = setting("brokerClientTlsEnabled", False, help="other brokers are asked over TLS")
    broker_client_tls_protocols: tuple[str, ...] = setting(
        "brokerClientTlsProtocols", (), help=f"towards other brokers, some of {', '.join(PROTOCOLS)}; empty: all"
    )
    broker_client_tls_ciphers: tuple[str, ...] = setting(
        "brokerClientTlsCiphers", (), help="towards other brokers, suites of TLS 1.2; empty: the library's choice"
    )
    broker_client_trusted: str = setting(
        "brokerClientTrustCertsFilePath", "", help="trusted certificates of other brokers, PEM; empty: the system's"
    )
    broker_client_certificate: str = setting(
        "brokerClientCertificateFilePath", "", help="certificate shown to other brokers"
    )
    broker_client_key: str = setting("brokerClientKeyFilePath", "", help="the key of that certificate")
    broker_client_with_key_store: bool = setting(
        "brokerClientTlsEnabledWithKeyStore", False, help="key stores (PKCS#12) instead of these PEM files"
    )
    broker_client_key_store_type: str = setting("brokerClientTlsKeyStoreType", "JKS", help=_STORES)
    broker_client_key_store: str = setting(
        "brokerClientTlsKeyStore", "", help="certificate and key shown to other brokers; empty: none"
    )
    broker_client_key_store_password: str = setting(
        "brokerClientTlsKeyStorePassword", "", help="its password", secret=True
    )
    broker_client_trust_store_type: str = setting("brokerClientTlsTrustStoreType", "JKS", help=_STORES)
    broker_client_trust_store: str = setting(
        "brokerClientTlsTrustStore", "", help="trusted certificates of other brokers; empty: the system's"
    )
    broker_client_trust_store_password: str = setting(
        "brokerClientTlsTrustStorePassword", "", help="its password", secret=True
    )
    broker_client_verify_hostname: bool = setting(
        "tlsHostnameVerificationEnabled", False, help="certificates of other brokers must name the host asked"
    )

    # The cluster.
    cluster_name: str = setting("clusterName", "standalone", help="name of the cluster")
    metadata_store_url: str = setting("metadataStoreUrl", "zk:127.0.0.1:2181", help="zk:host:port,… or rocksdb:DIR")
    configuration_store_url: str = setting(
        "configurationMetadataStoreUrl", "", help="empty or metadataStoreUrl: there is one store for everything"
    )
    bookkeeper_store_uri: str = setting(
        "bookkeeperMetadataServiceUri",
        "",
        help="empty or /ledgers in the store of metadataStoreUrl, as zk://host/ledgers",
    )
    session_timeout_ms: int = setting(
        "metadataStoreSessionTimeoutMillis", 30_000, help="how long the metadata store waits for a silent broker"
    )
    session_expired_policy: str = setting(
        "zookeeperSessionExpiredPolicy",
        RECONNECT,
        help="reconnect: while the metadata store is silent, open topics go on, and what was owned is taken up again "
        "afterwards; shutdown: no receipt leaves once the session may have ended, and the broker stops when it has",
    )
    evaluates_patterns: bool = setting(
        "enableBrokerSideSubscriptionPatternEvaluation",
        True,
        help="topics are compared with a client's pattern here, and clients may watch such lists",
    )
    pattern_characters_max: int = setting(
        "subscriptionPatternMaxLength", 50, help="longer patterns are left to the client", least=0
    )
    default_bundles: int = setting(
        "defaultNumberOfNamespaceBundles",
        4,
        help="bundles of a new namespace, if the request does not say how many",
        most=BUNDLES_MAX,
        least=1,
    )

    split_algorithm: str = setting(
        "defaultNamespaceBundleSplitAlgorithm",
        SPLIT_ALGORITHMS[0],
        help=f"where bundles are cut: one of {', '.join(SPLIT_ALGORITHMS)}",
    )
    split_algorithms: tuple[str, ...] = setting(
        "supportedNamespaceBundleSplitAlgorithms", SPLIT_ALGORITHMS, help="those that a request may ask for"
    )

    # The load manager.
    load_balancer: bool = setting(
        "loadBalancerEnabled", True, help="tell other brokers the load; the leader moves and splits bundles"
    )
    failure_domains: bool = setting(
        "failureDomainsEnabled",
        False,
        help="namespaces of an anti-affinity group are spread over failure domains of brokers first, then over brokers",
    )
    shedding: bool = setting("loadBalancerSheddingEnabled", True, help="move bundles from the most loaded broker")
    auto_split: bool = setting("loadBalancerAutoBundleSplitEnabled", True, help="split bundles above the limits below")
    auto_split_unload: bool = setting(
        "loadBalancerAutoUnloadSplitBundlesEnabled", True, help="give the parts of a bundle back after such a split"
    )
    report_threshold_percent: int = setting(
        "loadBalancerReportUpdateThresholdPercentage", 10, help="a change of the load that is told", least=1, most=100
    )
    report_interval_min_ms: int = setting(
        "loadBalancerReportUpdateMinIntervalMillis", 5_000, help="how often the load is looked at", least=100
    )
    report_interval_max_minutes: int = setting(
        "loadBalancerReportUpdateMaxIntervalMinutes", 15, help="the load is told at least as often", least=1
    )
    usage_interval_minutes: int | float = setting(
        "loadBalancerHostUsageCheckIntervalMinutes", 1, help="the time over which processor use is told", least=0.01
    )
    averages_interval_minutes: int | float = setting(
        "loadBalancerResourceQuotaUpdateIntervalMinutes",
        15,
        help="how often the leader stores the average traffic of bundles and brokers, for the next leader",
        least=0.01,
    )
    shedding_interval_minutes: int | float = setting(
        "loadBalancerSheddingIntervalMinutes", 1, help="how often the leader looks at the load of all", least=0.01
    )
    shedding_grace_minutes: int | float = setting(
        "loadBalancerSheddingGracePeriodMinutes", 30, help="how long a bundle that was moved stays where it is", least=0
    )
    shedding_threshold_percent: int = setting(
        "loadBalancerBrokerThresholdShedderPercentage",
        10,
        help="a difference in usage between two brokers that is left as it is, percent of a broker",
        least=1,
        most=100,
    )
    shedding_strategy: str = setting(
        "loadBalancerLoadSheddingStrategy",
        ONE_BUNDLE,
        help=f"which bundles are moved: {ONE_BUNDLE}, or as Apache's ThresholdShedder, OverloadShedder, "
        "UniformLoadShedder, AvgShedder do it, by the full names of the classes",
    )
    placement_strategy: str = setting(
        "loadBalancerLoadPlacementStrategy",
        PLACEMENT_STRATEGIES[0],
        help="where the bundles go that Apache's shedding strategies move: LeastLongTermMessageRate, "
        "LeastResourceUsageWithWeight, RoundRobinBrokerSelector, AvgShedder, by the full names of the classes",
    )
    cpu_weight: float = setting("loadBalancerCPUResourceWeight", 1.0, help="how much the processor counts; 0: nothing")
    direct_memory_weight: float = setting(
        "loadBalancerDirectMemoryResourceWeight", 0.0, help="the same of memory: all that a broker of this kind uses"
    )
    bandwidth_in_weight: float = setting("loadBalancerBandwidthInResourceWeight", 1.0, help="the same of the network")
    bandwidth_out_weight: float = setting("loadBalancerBandwidthOutResourceWeight", 1.0, help="the same, out")
    bandwith_in_weight: float = setting(
        "loadBalancerBandwithInResourceWeight", 1.0, help="an older name, in force while the right one is 1"
    )
    bandwith_out_weight: float = setting("loadBalancerBandwithOutResourceWeight", 1.0, help="the same, out")
    usage_history: float = setting(
        "loadBalancerHistoryResourcePercentage", 0.9, help="how much of a usage is that of before, 0 to 1", most=1
    )
    lower_boundary_shedding: bool = setting(
        "lowerBoundarySheddingEnabled",
        False,
        help="ThresholdShedder: the fullest broker gives bundles also where another is as far below the average",
    )
    unload_mbytes_min: float = setting(
        "loadBalancerBundleUnloadMinThroughputThreshold", 10.0, help="ThresholdShedder: MB a second worth a move"
    )
    overload_percent: int = setting(
        "loadBalancerBrokerOverloadedThresholdPercentage",
        85,
        help="usage above which OverloadShedder takes bundles off, and a placement strategy gives none",
        least=1,
        most=100,
    )
    rate_difference_percent: float = setting(
        "loadBalancerMsgRateDifferenceShedderThreshold",
        50.0,
        help="UniformLoadShedder: how much more messages, in percent, are too many; 0: any",
    )
    throughput_factor: float = setting(
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold",
        4.0,
        help="UniformLoadShedder: how many times as many bytes are too many; 0: any",
    )
    unload_share: float = setting(
        "maxUnloadPercentage", 0.2, help="UniformLoadShedder, AvgShedder: share of a difference that is moved", most=1
    )
    unload_messages_min: int = setting("minUnloadMessage", 1_000, help="messages a second of it that are worth a move")
    unload_bytes_min: int = setting("minUnloadMessageThroughput", 1_048_576, help="bytes a second, the same")
    unload_bundles_max: int = setting(
        "maxUnloadBundleNumPerShedding", -1, help="UniformLoadShedder: bundles moved at once; -1: any number", least=-1
    )
    avg_low_percent: int = setting(
        "loadBalancerAvgShedderLowThreshold", 15, help="AvgShedder: a difference of two brokers", most=100
    )
    avg_high_percent: int = setting(
        "loadBalancerAvgShedderHighThreshold", 40, help="AvgShedder: a large difference", most=100
    )
    avg_low_rounds: int = setting(
        "loadBalancerAvgShedderHitCountLowThreshold", 8, help="rounds with such a difference before a move", least=1
    )
    avg_high_rounds: int = setting(
        "loadBalancerAvgShedderHitCountHighThreshold", 2, help="rounds with a large one before a move", least=1
    )
    placement_difference_percent: int = setting(
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage",
        10,
        help="LeastResourceUsageWithWeight: how far below the average a broker is that gets bundles",
        most=100,
    )
    broker_max_topics: int = setting(
        "loadBalancerBrokerMaxTopics", 50_000, help="topics with which a broker gets no moved bundle while others may"
    )
    distribute_evenly: bool = setting(
        "loadBalancerDistributeBundlesEvenlyEnabled",
        True,
        help="a placement strategy has the choice among the brokers with the fewest bundles of the namespace",
    )
    stored_averages: int = setting(
        "loadBalancerMaxNumberOfBundlesInBundleLoadReport",
        10,
        help="bundles, those with most traffic, whose average the leader stores; -1: all",
        least=-1,
    )
    nic_gbps: float | None = setting(
        "loadBalancerOverrideBrokerNicSpeedGbps",
        None,
        help="speed of the broker's network in each direction, gigabits a second; not set: it does not count",
    )
    bundle_max_topics: int = setting(
        "loadBalancerNamespaceBundleMaxTopics", 1_000, help="topics of a bundle before it is split; 0: any", least=0
    )
    bundle_max_sessions: int = setting(
        "loadBalancerNamespaceBundleMaxSessions", 1_000, help="its producers and consumers, the same", least=0
    )
    bundle_max_messages: int = setting(
        "loadBalancerNamespaceBundleMaxMsgRate", 30_000, help="messages a second in and out, the same", least=0
    )
    bundle_max_mbytes: int = setting(
        "loadBalancerNamespaceBundleMaxBandwidthMbytes", 100, help="MB a second in and out, the same", least=0
    )
    namespace_max_bundles: int = setting(
        "loadBalancerNamespaceMaximumBundles",
        128,
        help="bundles of a namespace; with so many none is split by itself",
        least=1,
        most=BUNDLES_MAX,
    )

    # Messages that nobody takes.
    ttl_s: int = setting(
        "ttlDurationDefaultInSeconds", 0, help="older messages are passed over by all subscriptions; 0: none are"
    )
    expiry_check_minutes: int = setting(
        "messageExpiryCheckIntervalInMinutes", 5, help="how often messages are looked for that are too old", least=1
    )

    # Backlogs.
    backlog_quota_checks: bool = setting("backlogQuotaCheckEnabled", True, help="backlog quotas are kept")
    backlog_quota_check_s: int = setting(
        "backlogQuotaCheckIntervalInSeconds", 60, help="how often backlogs are compared with their quotas", least=1
    )
    backlog_quota_gbytes: float = setting(
        "backlogQuotaDefaultLimitGB", -1.0, help="the largest backlog of a topic, GiB; 0 or less: any", least=-1
    )
    backlog_quota_bytes: int = setting(
        "backlogQuotaDefaultLimitBytes",
        -1,
        help="the same in bytes; 0 or less: backlogQuotaDefaultLimitGB counts",
        least=-1,
    )
    backlog_quota_s: int = setting(
        "backlogQuotaDefaultLimitSecond", -1, help="the greatest age of the oldest message; 0 or less: any", least=-1
    )
    backlog_quota_policy: str = setting(
        "backlogQuotaDefaultRetentionPolicy", HOLD, help=f"above the quota: {', '.join(QUOTA_POLICIES)}"
    )
    subscription_expiration_minutes: int = setting(
        "subscriptionExpirationTimeMinutes", 0, help="subscriptions without consumers for so long are removed; 0: never"
    )
    subscription_expiry_check_minutes: int = setting(
        "subscriptionExpiryCheckIntervalInMinutes", 5, help="how often such subscriptions are looked for", least=1
    )

    # Rates; 0 or less: no limit.
    publish_rate_messages: int = setting(
        "maxPublishRatePerTopicInMessages", 0, help="messages a second into a topic", least=-1
    )
    publish_rate_bytes: int = setting("maxPublishRatePerTopicInBytes", 0, help="bytes a second into a topic", least=-1)
    broker_publish_messages: int = setting(
        "brokerPublisherThrottlingMaxMessageRate", 0, help="messages a second into the broker", least=-1
    )
    broker_publish_bytes: int = setting(
        "brokerPublisherThrottlingMaxByteRate", 0, help="bytes a second into the broker", least=-1
    )
    dispatch_rate_messages: int = setting(
        "dispatchThrottlingRatePerTopicInMsg", 0, help="messages a second out of a topic", least=-1
    )
    dispatch_rate_bytes: int = setting(
        "dispatchThrottlingRatePerTopicInByte", 0, help="bytes a second out of a topic", least=-1
    )
    subscription_dispatch_messages: int = setting(
        "dispatchThrottlingRatePerSubscriptionInMsg", 0, help="messages a second to a subscription", least=-1
    )
    subscription_dispatch_bytes: int = setting(
        "dispatchThrottlingRatePerSubscriptionInByte", 0, help="bytes a second to a subscription", least=-1
    )
    throttle_caught_up: bool = setting(
        "dispatchThrottlingOnNonBacklogConsumerEnabled",
        True,
        help="these rates hold for all subscriptions; false: not for those that are about at the end of the topic",
    )
    backlogged_entries: int = setting(
        "managedLedgerCursorBackloggedThreshold",
        1_000,
        help="entries to be read above which a subscription is not about at the end",
        least=0,
    )
    subscribe_rate_count: int = setting(
        "subscribeThrottlingRatePerConsumer", 0, help="times that a consumer may subscribe in the period", least=-1
    )
    subscribe_rate_period_s: int = setting("subscribeRatePeriodPerConsumerInSecond", 30, help="that period", least=1)

    backlog_scan_entries_max: int = setting(
        "subscriptionBacklogScanMaxEntries", 10_000, help="entries that one analysis of a backlog looks at", least=1
    )
    backlog_scan_ms_max: int = setting(
        "subscriptionBacklogScanMaxTimeMs", 120_000, help="how long one analysis of a backlog may take", least=1
    )

    # What metrics and statistics show of it.
    stats_update_s: int = setting(
        "statsUpdateFrequencyInSecs", 60, help="the period over which the rates in statistics are averages", least=1
    )
    expose_topic_metrics: bool = setting(
        "exposeTopicLevelMetricsInPrometheus", True, help="metrics for each topic; false: the sums of namespaces"
    )
    expose_consumer_metrics: bool = setting(
        "exposeConsumerLevelMetricsInPrometheus", False, help="metrics for each consumer, where those of topics are"
    )
    expose_producer_metrics: bool = setting(
        "exposeProducerLevelMetricsInPrometheus", False, help="metrics for each producer, where those of topics are"
    )
    split_partition_label: bool = setting(
        "splitTopicAndPartitionLabelInPrometheus",
        False,
        help="partitions have the label topic of their topic and a label partition; -1 for other topics",
    )
    expose_backlog_size: bool = setting(
        "exposeSubscriptionBacklogSizeInPrometheus", False, help="the bytes behind each subscription, estimated"
    )
    expose_ledger_metrics: bool = setting(
        "exposeManagedLedgerMetricsInPrometheus", True, help="metrics of managed ledgers (pulsar_ml_…), by namespace"
    )
    expose_cursor_metrics: bool = setting(
        "exposeManagedCursorMetricsInPrometheus", False, help="metrics of each cursor (pulsar_ml_cursor_…)"
    )

    # Who may do what.
    authorization_enabled: bool = setting("authorizationEnabled", False, help="each request needs a permission")
    authorization_provider: str = setting(
        "authorizationProvider", PERMISSIONS_PROVIDER, help="only Pulsar's own rules are there"
    )
    super_users: tuple[str, ...] = setting("superUserRoles", (), help="roles that may do everything")
    role_wildcards: bool = setting(
        "authorizationAllowWildcardsMatching", False, help="a role in a permission may begin or end with *"
    )

    # Limits of a connection.
    max_message_bytes: int = setting(
        "maxMessageSize",
        5 * 1024 * 1024,
        help="largest message, told to the clients",
        least=MESSAGE_BYTES_MIN,
        most=MESSAGE_BYTES_MAX,
    )
    max_uncompressed_bytes: int = setting(
        "maxUncompressedEntrySize",
        0,
        help="bytes that an entry may unpack to for consumers of the topic API; 0: four times maxMessageSize",
    )
    keep_alive_s: int = setting(
        "keepAliveIntervalSeconds", 30, help="a connection silent for two of these is closed", least=1
    )
    # 1,000 messages of 64 KiB are 64 MiB for one client. The journal stores messages of 1 KiB in groups of about 1,000,
    # so the limit protects the broker and does not throttle a client.
    max_pending_publishes: int = setting(
        "maxPendingPublishRequestsPerConnection", 1000, help="sends without a receipt before reading pauses", least=1
    )
    max_non_persistent: int = setting(
        "maxConcurrentNonPersistentMessagePerConnection",
        1000,
        help="messages for non-persistent topics that a connection may bring at once; others are dropped",
        least=1,
    )
    max_concurrent_lookups: int = setting(
        "maxConcurrentLookupRequest", 50_000, help="lookups under way in the whole broker", least=1
    )
    # Clients give a lookup up after 30 s. Whoever is refused earlier waits out a back-off of its own.
    takeover_wait_s: int = setting(
        "lookupTakeoverWaitSeconds",
        20,
        help="a lookup waits so long for a topic whose broker is gone or gives it back",
        least=0,
    )

    tells_what_it_serves: bool = setting(
        "magnetarServingLog",
        True,
        help="tell other brokers which topics this one serves, and make ready for theirs",
    )

    loop_stall_warn_ms: int = loop_stall_setting()

    http_requests_limited: bool = setting(
        "httpRequestsLimitEnabled", False, help="whether httpRequestsMaxPerSecond is in force"
    )
    http_requests_per_s: float = setting(
        "httpRequestsMaxPerSecond", 100.0, help="HTTP requests a second, of all clients; more are answered with 429"
    )
    http_names: tuple[str, ...] = names_setting()
    http_connections_max: int = setting(
        "maxHttpServerConnections", 2048, help="connections to the HTTP ports; 0 = no limit"
    )
    http_header_bytes: int = setting(
        "httpMaxRequestHeaderSize", 8192, help="one header, or the first line, of an HTTP request", least=1024
    )
    max_connections: int = setting("brokerMaxConnections", 0, help="connections to the binary ports; 0 = no limit")
    max_connections_per_ip: int = setting(
        "brokerMaxConnectionsPerIp", 0, help="connections from one address; 0 = no limit"
    )
    proxy_protocol: bool = setting(
        "haProxyProtocolEnabled", False, help="the PROXY header of a load balancer is read before the first command"
    )
    web_proxy_protocol: bool = setting(
        "webServiceHaProxyProtocolEnabled", False, help="the same for HTTP, and before the TLS of HTTPS"
    )

    # Topics.
    enable_persistent_topics: bool = setting("enablePersistentTopics", True, help="serve topics that are stored")
    enable_non_persistent_topics: bool = setting(
        "enableNonPersistentTopics", True, help="serve topics whose messages are not stored"
    )
    allow_auto_topic_creation: bool = setting("allowAutoTopicCreation", True, help="make topics when they are used")
    strict_topic_names: bool = setting(
        "strictTopicNameEnabled",
        False,
        help="new topics have no -partition- in their names, but as partitions, and only letters, digits and _ - = : .",
    )
    auto_topic_creation_type: str = setting(
        "allowAutoTopicCreationType", "non-partitioned", help="partitioned or non-partitioned"
    )
    default_partitions: int = setting(
        "defaultNumPartitions",
        1,
        help="partitions of a topic that is made when it is used",
        most=PARTITIONS_MAX,
        least=1,
    )
    allow_auto_subscription_creation: bool = setting(
        "allowAutoSubscriptionCreation", True, help="make durable subscriptions when they are used"
    )
    delete_inactive_topics: bool = setting(
        "brokerDeleteInactiveTopicsEnabled", True, help="delete topics that nobody uses or subscribes to"
    )
    delete_inactive_partitioned: bool = setting(
        "brokerDeleteInactivePartitionedTopicMetadataEnabled",
        False,
        help="a partitioned topic is deleted when the last of its partitions was",
    )
    delete_inactive_topics_s: int = setting(
        "brokerDeleteInactiveTopicsFrequencySeconds", 60, help="how often such topics are looked for", least=1
    )
    delete_inactive_topics_mode: str = setting(
        "brokerDeleteInactiveTopicsMode", NO_SUBSCRIPTIONS, help=f"one of {', '.join(DELETE_MODES)}"
    )
    delete_inactive_topics_idle_s: int | None = setting(
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        None,
        help="the idle time that is needed; default: brokerDeleteInactiveTopicsFrequencySeconds",
    )
    topic_level_policies: bool = setting(
        "topicLevelPoliciesEnabled", True, help="topics may have policies of their own, kept in __change_events"
    )
    system_topics: bool = setting("systemTopicEnabled", True, help="false: topics have no policies of their own")
    max_topics_per_namespace: int = setting("maxTopicsPerNamespace", 0, help="0 = no limit")
    max_subscriptions_per_topic: int = setting("maxSubscriptionsPerTopic", 0, help="0 = no limit")
    max_partitions_per_topic: int = setting("maxNumPartitionsPerPartitionedTopic", 0, help="0 = no limit")
    encryption_required: bool = setting(
        "encryptionRequireOnProducer", False, help="producers that do not encrypt are refused in all namespaces"
    )
    force_delete_tenants: bool = setting(
        "forceDeleteTenantAllowed", False, help="tenants may be deleted by force, with their namespaces and topics"
    )
    force_delete_namespaces: bool = setting(
        "forceDeleteNamespaceAllowed", False, help="namespaces may be deleted by force, with their topics"
    )
    max_tenants: int = setting("maxTenants", 0, help="0 = no limit")
    max_namespaces_per_tenant: int = setting("maxNamespacesPerTenant", 0, help="0 = no limit")
    compaction_threshold_bytes: int = setting(
        "brokerServiceCompactionThresholdInBytes", 0, help="a topic is compacted when so much is new; 0: when asked for"
    )
    # Eleven million keys of thirty characters; Apache's brokers have no limit.
    compaction_keys_mb: int = setting(
        "compactionKeysMaxMemoryMB",
        2_048,
        help="memory in MiB for the keys of a topic while it is compacted; one with more of them is not compacted",
        least=1,
    )
    compaction_check_s: int = setting(
        "brokerServiceCompactionMonitorIntervalInSeconds", 60, help="how often that is looked at", least=1
    )
    max_producers_per_topic: int = setting("maxProducersPerTopic", 0, help="0 = no limit")
    max_consumers_per_topic: int = setting("maxConsumersPerTopic", 0, help="0 = no limit")
    max_producers_per_address: int = setting(
        "maxSameAddressProducersPerTopic", 0, help="producers of one topic from one host; 0 = no limit"
    )
    max_consumers_per_address: int = setting(
        "maxSameAddressConsumersPerTopic", 0, help="consumers of one topic from one host; 0 = no limit"
    )
    max_consumers_per_subscription: int = setting("maxConsumersPerSubscription", 0, help="0 = no limit")
    max_concurrent_topic_loads: int = setting(
        "maxConcurrentTopicLoadRequest", 5000, help="topics being opened at the same time", least=1
    )
    topic_load_s: int = setting(
        "topicLoadTimeoutSeconds", 60, help="a client is refused if its topic takes longer to open", least=1
    )

    # Ledgers.
    ensemble_size: int = setting(
        "managedLedgerDefaultEnsembleSize", 2, help="bookies of a ledger", most=ENSEMBLE_SIZE_MAX
    )
    write_quorum: int = setting("managedLedgerDefaultWriteQuorum", 2, help="copies of an entry")
    ack_quorum: int = setting("managedLedgerDefaultAckQuorum", 2, help="copies before an entry is confirmed")
    digest_type: str = setting("managedLedgerDigestType", "CRC32C", help=", ".join(DIGEST_TYPES))
    max_entries_per_ledger: int = setting(
        "managedLedgerMaxEntriesPerLedger", 50_000, help="entries of a ledger", least=1
    )
    max_ledger_mbytes: int = setting("managedLedgerMaxSizePerLedgerMbytes", 2048, help="size of a ledger, MB", least=1)
    min_rollover_minutes: int = setting(
        "managedLedgerMinLedgerRolloverTimeMinutes", 10, help="a younger ledger is not replaced, even if full"
    )
    max_rollover_minutes: int = setting(
        "managedLedgerMaxLedgerRolloverTimeMinutes", 240, help="an older ledger is replaced, even if not full"
    )
    inactive_rollover_s: int = setting(
        "managedLedgerInactiveLedgerRolloverTimeSeconds",
        0,
        help="a ledger to which nothing was written for so long is replaced (looked at every "
        "retentionCheckIntervalInSeconds); 0: not for that",
        least=0,
    )
    cache_mbytes: int = setting("managedLedgerCacheSizeMB", 64, help="memory for entries just written, MB")
    max_unacked_ranges: int = setting(
        "managedLedgerMaxUnackedRangesToPersist",
        10_000,
        help="ranges of acknowledgements that survive a restart",
    )
    pause_for_acks: bool = setting(
        "dispatcherPauseOnAckStatePersistentEnabled",
        False,
        help="Shared and Key_Shared deliver nothing new while more ranges are acknowledged than survive a restart",
    )
    max_ranges_in_metadata: int = setting(
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore",
        1_000,
        help="up to so many of them a subscription that is closed is stored in the metadata store alone",
        least=0,
        most=10_000,  # some 20 bytes each, and a node has a megabyte
    )
    cursor_ledger_entries: int = setting(
        "managedLedgerCursorMaxEntriesPerLedger", 50_000, help="states in a ledger of a subscription", least=1
    )
    cursor_ledger_s: int = setting(
        "managedLedgerCursorRolloverTimeInSeconds",
        14_400,
        help="an older ledger of a subscription is replaced",
        least=1,
    )
    mark_delete_rate: float = setting(
        "managedLedgerDefaultMarkDeleteRateLimit", 1.0, help="times a second a cursor's state is written"
    )
    retention_minutes: int = setting(
        "defaultRetentionTimeInMinutes", 0, help="consumed data is kept this long; -1 = for ever", least=-1
    )
    retention_mbytes: int = setting(
        "defaultRetentionSizeInMB", 0, help="consumed data is kept up to this size; -1 = any", least=-1
    )
    skip_lost_data: bool = setting(
        "autoSkipNonRecoverableData",
        False,
        help="entries and ledgers that are gone for good count as acknowledged when a subscription comes to them; "
        "false: its reads are tried again for ever",
    )
    force_recovery: bool = setting(
        "managedLedgerForceRecovery",
        False,
        help="a subscription whose ledger cannot be read for any reason goes back to what its record says; false: the "
        "topic is not opened before it can be",
    )
    retention_check_s: int = setting("retentionCheckIntervalInSeconds", 120, help="how often consumed data is dropped")

    bookkeeper_slow_add_ms: int = setting(
        "bookkeeperClientSlowAddMillis",
        1_000,
        help="an add that takes longer is logged with its stages and bookies, one line a second at most; 0: none",
    )
    bookkeeper_timeout_s: int = setting(
        "bookkeeperClientTimeoutInSeconds", 30, help="an add or read that a bookie does not answer fails then", least=1
    )
    shutdown_timeout_ms: int = setting(
        "brokerShutdownTimeoutMs",
        60_000,
        help="a broker that is stopped hands its bundles over for so long, 20 s at most; the rest is closed then",
    )
    append_timeout_s: int = setting(
        "managedLedgerAddEntryTimeoutSeconds",
        0,
        help="a message that cannot be stored for so long is given back to its producer's client; 0: 30",
        least=0,
    )
    bookkeeper_rackaware: bool = setting(
        "bookkeeperClientRackawarePolicyEnabled",
        True,
        help="copies of an entry go to different racks (`bookies set-bookie-rack`) and hosts; false: at random",
    )
    bookkeeper_racks_min: int = setting(
        "bookkeeperClientMinNumRacksPerWriteQuorum",
        RACKS_MIN,
        help="racks over which the copies of an entry are spread at least, where racks are told",
        least=1,
    )
    bookkeeper_racks_enforced: bool = setting(
        "bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
        False,
        help="no ledger is made that has fewer racks; bookies in /default-rack are not used then",
    )
    bookkeeper_regionaware: bool = setting(
        "bookkeeperClientRegionawarePolicyEnabled",
        False,
        help="a rack is told as /region/rack; copies of an entry go to all regions, and to different racks in each",
    )
    bookkeeper_regions: str = setting(
        "reppRegionsToWrite", "", help="regions, `eu;us;asia`; with it acknowledged entries are in several of them"
    )
    bookkeeper_regions_min: int = setting(
        "reppMinimumRegionsForDurability",
        regions.REGIONS_MIN,
        help="regions over which any ack quorum is spread, with reppRegionsToWrite; a ledger without them is refused",
    )
    bookkeeper_regions_bind_replacements: bool = setting(
        "reppEnableDurabilityEnforcementInReplace", True, help="the same for a bookie that takes the place of another"
    )
    bookkeeper_regions_validated: bool = setting(
        "reppEnableValidation", True, help="false is refused: every choice is checked"
    )
    bookkeeper_groups: str = setting(
        "bookkeeperClientIsolationGroups",
        "",
        help="groups of bookies (`bookies set-bookie-rack -g`) for the ledgers of namespaces that have no affinity "
        "group, comma separated; empty: all bookies",
    )
    bookkeeper_secondary_groups: str = setting(
        "bookkeeperClientSecondaryIsolationGroups", "", help="used as well when those have too few bookies"
    )
    strict_affinity: bool = setting(
        "strictBookieAffinityEnabled",
        False,
        help="namespaces without an affinity group use only bookies that are in no group",
    )
    # TLS to the bookies. Off by default; bookkeeper_tls_directory alone switches it on.
    bookkeeper_tls_directory: str = setting(
        "bookkeeperTLSDirectory",
        "",
        help="folder with tls.crt, tls.key and ca.crt (PEM): bookies are reached over TLS only, with this certificate; "
        "empty: off, or as the settings below say",
    )
    bookkeeper_tls: bool = setting(
        "bookkeeperTLSClientAuthentication", False, help="bookies are reached over TLS only, with the files below"
    )
    bookkeeper_tls_factory: str = setting(
        "bookkeeperTLSProviderFactoryClass",
        APACHE_FACTORY,
        help="the class that the settings below belong to; others are refused",
    )
    bookkeeper_tls_key_type: str = setting("bookkeeperTLSKeyFileType", "PEM", help="PEM; others are refused")
    bookkeeper_tls_key: str = setting("bookkeeperTLSKeyFilePath", "", help="the key of the broker's certificate, PEM")
    bookkeeper_tls_key_password_file: str = setting(
        "bookkeeperTLSKeyStorePasswordPath", "", help="file with the password of the key, if it has one"
    )
    bookkeeper_tls_certificate: str = setting(
        "bookkeeperTLSCertificateFilePath", "", help="the broker's certificate and its chain, PEM"
    )
    bookkeeper_tls_trust_type: str = setting("bookkeeperTLSTrustCertTypes", "PEM", help="PEM; others are refused")
    bookkeeper_tls_trusted: str = setting(
        "bookkeeperTLSTrustCertsFilePath",
        "",
        help="trusted certificates, PEM: a bookie needs one of them behind its own",
    )
    bookkeeper_tls_refresh_s: int = setting(
        "bookkeeperTlsCertFilesRefreshDurationSeconds",
        REFRESH_S,
        help="seconds between two checks whether the files have changed; 0: no checks",
    )
    bookkeeper_tls_verify_hostname: bool = setting(
        "bookkeeper_tlsHostnameVerificationEnabled",
        False,
        help="bookies' certificates must name the host that was connected to",
    )

    # Deduplication.
    deduplication: bool = setting("brokerDeduplicationEnabled", False, help="drop messages that a producer sends twice")
    deduplication_entries: int = setting(
        "brokerDeduplicationEntriesInterval", 1000, help="entries between two snapshots of the sequence ids", least=1
    )
    deduplication_snapshot_s: int = setting(
        "brokerDeduplicationSnapshotIntervalSeconds", 120, help="time between two snapshots of the sequence ids"
    )
    deduplication_producers: int = setting(
        "brokerDeduplicationMaxNumberOfProducers", 10_000, help="producers of a topic that are remembered", least=1
    )
    deduplication_inactivity_minutes: int = setting(
        "brokerDeduplicationProducerInactivityTimeoutMinutes",
        360,
        help="producers away this long are forgotten",
    )

    # Memory for all clients together. (broker.memory_budget)
    publish_buffer_mbytes: int = setting(
        "maxMessagePublishBufferSizeInMB",
        -1,
        help="sends of all connections without a receipt, MB; above it sockets are not read; "
        "-1 = 1/8 of the memory, at most 128",
        least=-1,
    )
    read_buffer_mbytes: int = setting(
        "managedLedgerMaxReadsInFlightSizeInMB",
        -1,
        help="reads under way and frames not yet sent, of all connections, MB; above it nothing is read; "
        "-1 or 0 = 1/16 of the memory, at most 64",
        least=-1,
    )

    # Dispatch.
    max_unacked_per_consumer: int = setting(
        "maxUnackedMessagesPerConsumer", 50_000, help="messages without an ack before a consumer waits; 0 = any"
    )
    max_unacked_per_subscription: int = setting(
        "maxUnackedMessagesPerSubscription", 200_000, help="the same for a whole subscription; 0 = any"
    )
    max_unacked_per_broker: int = setting(
        "maxUnackedMessagesPerBroker",
        0,
        help="the same for all Shared subscriptions of the broker: those with more than their part wait; 0 = any",
        least=0,
    )
    max_unacked_part: float = setting(
        "maxUnackedMessagesPerSubscriptionOnBrokerBlocked",
        0.16,
        help="that part, of maxUnackedMessagesPerBroker; 0: none waits",
        least=0,
        most=1,
    )
    max_read_batch_entries: int = setting("dispatcherMaxReadBatchSize", 100, help="entries read at once", least=1)
    max_read_batch_bytes: int = setting(
        "dispatcherMaxReadSizeBytes", 5 * 1024 * 1024, help="bytes read at once", least=1
    )
    round_robin_messages: int = setting(
        "dispatcherMaxRoundRobinBatchSize",
        20,
        help="messages a Shared consumer gets before the next one's turn",
        least=1,
    )
    batch_index_acks: bool = setting(
        "acknowledgmentAtBatchIndexLevelEnabled", False, help="acks of single messages inside a batch"
    )
    failover_delay_ms: int = setting(
        "activeConsumerFailoverDelayTimeMillis", 1000, help="wait before another consumer becomes active"
    )
    subscription_types: tuple[str, ...] = setting(
        "subscriptionTypesEnabled", SUBSCRIPTION_TYPES, help="the types of subscriptions that consumers may use"
    )
    key_shared: bool = setting(
        "subscriptionKeySharedEnable", True, help="Key_Shared subscriptions are allowed (see subscriptionTypesEnabled)"
    )
    key_shared_consistent_hashing: bool = setting(
        "subscriptionKeySharedUseConsistentHashing", True, help="hash ring for Key_Shared; false: ranges are halved"
    )
    key_shared_points: int = setting(
        "subscriptionKeySharedConsistentHashingReplicaPoints",
        100,
        help="points of a consumer on the hash ring",
        least=1,
        most=10_000,  # there are 65,536 hashes
    )
    delayed_delivery: bool = setting("delayedDeliveryEnabled", True, help="hold messages until their time")
    delayed_delivery_tick_ms: int = setting(
        "delayedDeliveryTickTimeMillis",
        1000,
        help="how late delayed messages may come; how early too, with isDelayedDeliveryDeliverAtTimeStrict=false",
        least=1,
    )
    delayed_delivery_max_ms: int = setting(
        "delayedDeliveryMaxDelayInMillis", 0, help="a message that asks for more is refused; 0: any delay"
    )
    delayed_delivery_strict: bool = setting(
        "isDelayedDeliveryDeliverAtTimeStrict",
        True,
        help="delayed messages are never delivered too early; false: up to a tick too early, as Apache's default",
    )
    active_consumer_probe_ms: int = setting(
        "connectionLivenessCheckTimeoutMillis",
        5000,
        help="wait for a PONG before a silent client is disconnected, whose name or place another wants; 0: never",
    )

    # What entries carry.
    entry_metadata_interceptors: tuple[str, ...] = setting(
        "brokerEntryMetadataInterceptors",
        (),
        help=f"what is put before entries: {TIMESTAMP_INTERCEPTOR} (when they came), {INDEX_INTERCEPTOR} (number of "
        "their last message in the topic)",
    )
    expose_entry_metadata: bool = setting(
        "exposingBrokerEntryMetadataToClientEnabled", False, help="send the broker's own entry metadata to clients"
    )

    # The topic API over gRPC: small messages that come within a window are stored as one entry.
    grpc_group_messages_max: int = setting("grpcGroupMaxMessages", 1000, help="messages of one entry", least=1)
    grpc_group_bytes_max: int = setting("grpcGroupMaxBytes", 128 * 1024, help="bytes of one entry's messages", least=1)
    grpc_group_delay_ms: float = setting(
        "grpcGroupMaxDelayMillis", 1.0, help="wait so long for more messages", most=1000
    )

    # Schemas.
    schema_strategy: str = setting("schemaCompatibilityStrategy", "FULL", help=", ".join(COMPATIBILITY_STRATEGIES))
    schema_validation: bool = setting(
        "isSchemaValidationEnforced", False, help="refuse producers without a schema on topics with one"
    )
    schema_auto_update: bool = setting(
        "isAllowAutoUpdateSchemaEnabled", True, help="producers may bring new versions of a schema"
    )

    @property
    def advertised_host(self) -> str:
        """The host name that clients are told; `localhost` for a broker on all addresses that advertises none."""
        if self.advertised_address:
            return self.advertised_address
        return "localhost" if self.bind_address in ("0.0.0.0", "::", "") else self.bind_address

    @property
    def partitions_max(self) -> int:
        """How many partitions a topic may have."""
        return min(self.max_partitions_per_topic or PARTITIONS_MAX, PARTITIONS_MAX)

    def publish_buffer_bytes(self, memory_bytes: int) -> int:
        """maxMessagePublishBufferSizeInMB in bytes, for a process that may use *memory_bytes*."""
        return self._buffer_bytes(self.publish_buffer_mbytes, memory_bytes // 8, 128 * MIB)

    def read_buffer_bytes(self, memory_bytes: int) -> int:
        """managedLedgerMaxReadsInFlightSizeInMB in bytes, for a process that may use *memory_bytes*."""
        return self._buffer_bytes(self.read_buffer_mbytes, memory_bytes // 16, 64 * MIB)

    def _buffer_bytes(self, wanted_mbytes: int, share_bytes: int, most_bytes: int) -> int:
        if wanted_mbytes > 0:
            return wanted_mbytes * MIB
        return max(min(share_bytes, most_bytes), 2 * self.max_message_bytes)

    @property
    def backlog_quota(self) -> BacklogQuota:
        """The quota of topics for which nothing else is said."""
        gib = int(self.backlog_quota_gbytes * 1024 * MIB) if self.backlog_quota_gbytes > 0 else -1
        size = self.backlog_quota_bytes if self.backlog_quota_bytes > 0 else gib
        return BacklogQuota(size, self.backlog_quota_s, self.backlog_quota_policy)

    @property
    def inactive_topics(self) -> InactiveTopics:
        """When unused topics are deleted for which nothing else is said."""
        idle_s = self.delete_inactive_topics_idle_s
        return InactiveTopics(
            self.delete_inactive_topics,
            self.delete_inactive_topics_mode,
            self.delete_inactive_topics_s if idle_s is None else idle_s,
        )

    @property
    def publish_rate(self) -> PublishRate:
        return PublishRate(self.publish_rate_messages, self.publish_rate_bytes)

    @property
    def broker_publish_rate(self) -> PublishRate:
        """The limit of all topics together."""
        return PublishRate(self.broker_publish_messages, self.broker_publish_bytes)

    @property
    def dispatch_rate(self) -> DispatchRate:
        return DispatchRate(self.dispatch_rate_messages, self.dispatch_rate_bytes, 1)

    @property
    def subscription_dispatch_rate(self) -> DispatchRate:
        return DispatchRate(self.subscription_dispatch_messages, self.subscription_dispatch_bytes, 1)

    @property
    def subscribe_rate(self) -> SubscribeRate:
        return SubscribeRate(self.subscribe_rate_count, self.subscribe_rate_period_s)

    def problems(self) -> Iterator[str]:
        for name, value, values in (
            ("backlogQuotaDefaultRetentionPolicy", self.backlog_quota_policy, QUOTA_POLICIES),
            ("brokerDeleteInactiveTopicsMode", self.delete_inactive_topics_mode, DELETE_MODES),
            ("zookeeperSessionExpiredPolicy", self.session_expired_policy, (RECONNECT, SHUTDOWN)),
        ):
            if value not in values:
                yield f"{name}={value}: expected one of {', '.join(values)}"
        if self.service_port is None and self.service_port_tls is None:
            yield "brokerServicePort or brokerServicePortTls must be set: clients come in there"
        yield from self._port_tls_problems()
        yield from self._authentication_problems()
        for name in (self.split_algorithm, *self.split_algorithms):
            if name not in SPLIT_ALGORITHMS:
                yield f"{name} is not a way to cut a bundle; there are {', '.join(SPLIT_ALGORITHMS)}"
        for name, strategy, strategies in (
            ("loadBalancerLoadSheddingStrategy", self.shedding_strategy, SHEDDING_STRATEGIES),
            ("loadBalancerLoadPlacementStrategy", self.placement_strategy, PLACEMENT_STRATEGIES),
        ):
            if strategy not in strategies:
                yield f"{name}={strategy}: expected one of {', '.join(strategies)}; others are Java classes"
        for name in self.subscription_types:
            if name not in SUBSCRIPTION_TYPES:
                yield f"subscriptionTypesEnabled={name}: expected some of {', '.join(SUBSCRIPTION_TYPES)}"
        if self.configuration_store_url and _place(self.configuration_store_url) != _place(self.metadata_store_url):
            yield (
                f"configurationMetadataStoreUrl={self.configuration_store_url}: a second store is not read; remove it, "
                "or set it to metadataStoreUrl"
            )
        if self.bookkeeper_store_uri and _place(self.bookkeeper_store_uri) != _place(self.metadata_store_url):
            yield (
                f"bookkeeperMetadataServiceUri={self.bookkeeper_store_uri}: ledgers are at /ledgers in the store of "
                "metadataStoreUrl; remove it"
            )
        yield from regions.problems(
            self.bookkeeper_regions,
            self.bookkeeper_regions_min,
            is_validated=self.bookkeeper_regions_validated,
            is_aware=self.bookkeeper_regionaware,
            switch="bookkeeperClientRegionawarePolicyEnabled=true",
        )
        rules = regions.rules_of(self.bookkeeper_regions, self.bookkeeper_regions_min, binds_replacements=True)
        problem = rules.quorum_problem(self.write_quorum, self.ack_quorum) if self.bookkeeper_regionaware else None
        if problem is not None:
            yield f"{problem} (managedLedgerDefaultWriteQuorum, managedLedgerDefaultAckQuorum)"
        if self.bookkeeper_racks_enforced and not (self.bookkeeper_rackaware or self.bookkeeper_regionaware):
            yield (
                "bookkeeperClientEnforceMinNumRacksPerWriteQuorum=true needs "
                "bookkeeperClientRackawarePolicyEnabled=true: without it nobody looks at racks"
            )
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            yield (
                f"managedLedgerDefaultEnsembleSize ({self.ensemble_size}) ≥ managedLedgerDefaultWriteQuorum "
                f"({self.write_quorum}) ≥ managedLedgerDefaultAckQuorum ({self.ack_quorum}) ≥ 1 must hold"
            )
        if self.digest_type not in DIGEST_TYPES:
            yield f"managedLedgerDigestType={self.digest_type}: expected one of {', '.join(DIGEST_TYPES)}"
        if self.auto_topic_creation_type not in ("partitioned", "non-partitioned"):
            yield f"allowAutoTopicCreationType={self.auto_topic_creation_type}: expected partitioned or non-partitioned"
        if self.schema_strategy not in COMPATIBILITY_STRATEGIES:
            known = ", ".join(COMPATIBILITY_STRATEGIES)
            yield f"schemaCompatibilityStrategy={self.schema_strategy}: expected one of {known}"
        for interceptor in self.entry_metadata_interceptors:
            if interceptor not in (TIMESTAMP_INTERCEPTOR, INDEX_INTERCEPTOR):
                yield (
                    f"brokerEntryMetadataInterceptors={interceptor}: expected {TIMESTAMP_INTERCEPTOR} or "
                    f"{INDEX_INTERCEPTOR}; plugins are Java classes, which this broker cannot run"
                )
        if self.min_rollover_minutes > self.max_rollover_minutes:
            yield (
                f"managedLedgerMinLedgerRolloverTimeMinutes ({self.min_rollover_minutes}) must not exceed "
                f"managedLedgerMaxLedgerRolloverTimeMinutes ({self.max_rollover_minutes})"
            )
        for name, mbytes in (
            ("maxMessagePublishBufferSizeInMB", self.publish_buffer_mbytes),
            ("managedLedgerMaxReadsInFlightSizeInMB", self.read_buffer_mbytes),
        ):
            if mbytes > 0 and mbytes * MIB < 2 * self.max_message_bytes:
                yield f"{name} ({mbytes}) must hold two messages of maxMessageSize ({self.max_message_bytes} bytes)"
        yield from self._tls_problems()
        if self.authorization_enabled and not self.authentication_enabled:
            yield (
                "authorizationEnabled=true needs authenticationEnabled=true: without it nobody knows whose request "
                "it is"
            )
        if self.authorization_provider != PERMISSIONS_PROVIDER:
            yield f"authorizationProvider={self.authorization_provider}: only {PERMISSIONS_PROVIDER} is there"
        try:
            names = parse_listeners(self.advertised_listeners)
        except ValueError as error:
            yield f"advertisedListeners: {error}"
        else:
            if self.internal_listener_name and self.internal_listener_name not in names:
                yield f"internalListenerName={self.internal_listener_name} is not among advertisedListeners"

    @property
    def uncompressed_bytes_max(self) -> int:
        """What an entry may unpack to. Clients compare the compressed size with maxMessageSize, so this is more."""
        return self.max_uncompressed_bytes or min(4 * self.max_message_bytes, 2**31 - 1)

    def _tls_problems(self) -> Iterator[str]:
        if self.bookkeeper_tls_directory and self.bookkeeper_tls:
            yield (
                "bookkeeperTLSClientAuthentication and bookkeeperTLSDirectory exclude each other: the folder says "
                "everything; remove one of them"
            )
        if not self.bookkeeper_tls:
            return
        if self.bookkeeper_tls_factory != APACHE_FACTORY:
            yield f"bookkeeperTLSProviderFactoryClass={self.bookkeeper_tls_factory}: only {APACHE_FACTORY} is there"
        for type_setting, kind, path_setting, path in (
            ("bookkeeperTLSKeyFileType", self.bookkeeper_tls_key_type,
             "bookkeeperTLSKeyFilePath", self.bookkeeper_tls_key),
            ("bookkeeperTLSTrustCertTypes", self.bookkeeper_tls_trust_type,
             "bookkeeperTLSTrustCertsFilePath", self.bookkeeper_tls_trusted),
        ):  # fmt: skip
            problem = store_problem(type_setting, kind, path_setting, path)
            if problem is not None:
                yield problem
            elif not path:
                yield f"{path_setting} is not set, which bookkeeperTLSClientAuthentication=true needs"
        if not self.bookkeeper_tls_certificate:
            yield "bookkeeperTLSCertificateFilePath is not set, which bookkeeperTLSClientAuthentication=true needs"

    @property
    def has_tls(self) -> bool:
        """Whether one of the ports speaks TLS."""
        return any(port is not None for port in (self.service_port_tls, self.web_port_tls, self.grpc_port_tls))

    @property
    def _trusted_clients(self) -> str:
        return self.tls_trust_store if self.tls_with_key_store else self.tls_trusted

    @property
    def _trust_setting(self) -> str:
        return "tlsTrustStore" if self.tls_with_key_store else "tlsTrustCertsFilePath"

    def _store_problems(self) -> Iterator[str]:
        """Types of key stores that nobody reads."""
        types: list[tuple[str, str]] = []
        if self.tls_with_key_store:
            types += (("tlsKeyStoreType", self.tls_key_store_type), ("tlsTrustStoreType", self.tls_trust_store_type))
        if self.broker_client_with_key_store:
            types += (
                ("brokerClientTlsKeyStoreType", self.broker_client_key_store_type),
                ("brokerClientTlsTrustStoreType", self.broker_client_trust_store_type),
            )
        if self.broker_client_plugin == KEY_STORE_PLUGIN and not self.broker_client_with_key_store:
            yield f"{KEY_STORE_PLUGIN} needs brokerClientTlsEnabledWithKeyStore=true"
        for name, kind in types:
            if (problem := store_type_problem(name, kind)) is not None:
                yield problem

    def _port_tls_problems(self) -> Iterator[str]:
        yield from self._store_problems()
        if self.tls_enabled and not self.has_tls:
            yield "tlsEnabled=true: no port speaks TLS; set brokerServicePortTls (6651) and webServicePortTls (8443)"
        if not self.has_tls:
            return
        if self.tls_with_key_store:
            if not self.tls_key_store:
                yield "tlsKeyStore is not set, which a port with TLS needs (tlsEnabledWithKeyStore)"
        else:
            for name, path in (("tlsCertificateFilePath", self.tls_certificate), ("tlsKeyFilePath", self.tls_key)):
                if not path:
                    yield f"{name} is not set, which a port with TLS needs"
                elif (problem := store_problem("tlsKeyStoreType", "PEM", name, path)) is not None:
                    yield problem
        yield from _suite_problems("tls", self.tls_protocols, self.tls_ciphers)
        yield from _suite_problems("webServiceTls", self.web_tls_protocols, self.web_tls_ciphers)
        if self.tls_client_required and not self._trusted_clients:
            yield f"tlsRequireTrustedClientCertOnConnect=true needs {self._trust_setting}: whom to trust"
        if self.tls_client_required and self.tls_insecure:
            yield "tlsRequireTrustedClientCertOnConnect and tlsAllowInsecureConnection exclude each other; choose one"

    @property
    def openid_key_files(self) -> dict[str, str]:
        """Issuer → where its keys are."""
        pairs = (pair.rpartition("=") for pair in self.openid_keys)
        return {issuer: path for issuer, _, path in pairs}

    def _authentication_problems(self) -> Iterator[str]:
        yield from _suite_problems("brokerClientTls", self.broker_client_tls_protocols, self.broker_client_tls_ciphers)
        if not self.authentication_enabled:
            return
        if not self.authentication_providers:
            yield f"authenticationEnabled=true needs authenticationProviders: some of {', '.join(PROVIDERS)}"
        for name in self.authentication_providers:
            if name not in PROVIDERS:
                yield f"authenticationProviders={name}: it is not there; there are {', '.join(PROVIDERS)}"
        methods = {PROVIDERS.get(name) for name in self.authentication_providers}
        if OPENID in self.authentication_providers:
            yield from _openid_problems(self)
        methods = {PROVIDERS.get(name) for name in self.authentication_providers if name != OPENID}
        if TOKEN in methods and not (self.token_secret_key or self.token_public_key):
            yield f"{_class_of(TOKEN)} needs tokenSecretKey or tokenPublicKey"
        if TOKEN in methods and bool(self.token_audience_claim) != bool(self.token_audience):
            yield "tokenAudienceClaim and tokenAudience need each other; set both, or none"
        if BASIC in methods and not self.basic_users:
            yield f"{_class_of(BASIC)} needs basicAuthConf"
        if TLS in methods:
            if not self.has_tls:
                yield f"{_class_of(TLS)} needs a port with TLS: brokerServicePortTls or webServicePortTls"
            if not self._trusted_clients:
                yield f"{_class_of(TLS)} needs {self._trust_setting}: who signs the certificates of clients"
            if self.tls_insecure:
                yield f"{_class_of(TLS)} and tlsAllowInsecureConnection exclude each other; choose one"
        if self.broker_client_plugin and self.broker_client_plugin not in CLIENT_PLUGINS:
            known = ", ".join(CLIENT_PLUGINS)
            yield f"brokerClientAuthenticationPlugin={self.broker_client_plugin}: expected one of {known}"

    @property
    def port_tls(self) -> TlsFiles | None:
        """The files for TLS at the broker's ports; None: none of them speaks it."""
        if not self.has_tls:
            return None
        files = TlsFiles(
            origin="tlsCertificateFilePath, tlsKeyFilePath, tlsTrustCertsFilePath",
            certificate=self.tls_certificate,
            key=self.tls_key,
            trusted="" if self.tls_insecure else self.tls_trusted,
        )
        if self.tls_with_key_store:
            files = TlsFiles(
                origin="tlsKeyStore, tlsTrustStore",
                key_store=self.tls_key_store,
                key_store_password=self.tls_key_store_password,
                trust_store="" if self.tls_insecure else self.tls_trust_store,
                trust_store_password=self.tls_trust_store_password,
            )
        return replace(
            files,
            protocols=self.tls_protocols,
            ciphers=openssl_ciphers("tlsCiphers", self.tls_ciphers),
            refresh_s=self.tls_refresh_s,
        )

    @property
    def web_tls(self) -> TlsFiles | None:
        """The same for HTTPS, with protocols and suites of its own if there are any."""
        files = self.port_tls
        if files is None or not (self.web_tls_protocols or self.web_tls_ciphers):
            return files
        return replace(
            files,
            protocols=self.web_tls_protocols or files.protocols,
            ciphers=openssl_ciphers("webServiceTlsCiphers", self.web_tls_ciphers) or files.ciphers,
        )

    @property
    def bookie_tls(self) -> TlsFiles | None:
        """The files for TLS to the bookies; None: connections to them are not encrypted."""
        if self.bookkeeper_tls_directory:
            files = directory_files(self.bookkeeper_tls_directory, "bookkeeperTLSDirectory")
        elif self.bookkeeper_tls:
            files = TlsFiles(
                origin="bookkeeperTLSCertificateFilePath, bookkeeperTLSKeyFilePath, bookkeeperTLSTrustCertsFilePath",
                certificate=self.bookkeeper_tls_certificate,
                key=self.bookkeeper_tls_key,
                key_password_file=self.bookkeeper_tls_key_password_file,
                trusted=self.bookkeeper_tls_trusted,
            )
        else:
            return None
        return replace(
            files, verify_hostname=self.bookkeeper_tls_verify_hostname, refresh_s=self.bookkeeper_tls_refresh_s
        )


def _suite_problems(prefix: str, protocols: tuple[str, ...], ciphers: tuple[str, ...]) -> Iterator[str]:
    yield from protocol_problems(f"{prefix}Protocols", protocols)
    try:
        openssl_ciphers(f"{prefix}Ciphers", ciphers)
    except ValueError as error:
        yield str(error)


def _openid_problems(config: BrokerConfig) -> Iterator[str]:
    if not config.openid_issuers:
        yield "AuthenticationProviderOpenID needs openIDAllowedTokenIssuers"
    if config.openid_discovery != "DISABLED":
        yield f"openIDFallbackDiscoveryMode={config.openid_discovery}: only DISABLED is there; name all issuers"
    if not config.openid_audiences:
        yield "AuthenticationProviderOpenID needs openIDAllowedAudiences"
    for issuer in config.openid_issuers:
        if config.openid_https and not issuer.startswith("https://"):
            yield f"openIDAllowedTokenIssuers={issuer}: https is needed (openIDRequireIssuersUseHttps)"
    for pair in config.openid_keys:
        issuer, separator, path = pair.rpartition("=")
        if not separator or not path or issuer not in config.openid_issuers:
            yield f"openIDIssuerKeyFiles={pair}: expected issuer=PATH, with one of openIDAllowedTokenIssuers"


def change_in_use(config: BrokerConfig, changes: Mapping[str, object]) -> None:
    """Give fields of a configuration other values while it is in use: all parts of a broker share the one object.

    For `broker.settings.dynamic` alone, which knows the settings that are read anew whenever they are used.
    """
    for name, value in changes.items():
        object.__setattr__(config, name, value)


def _place(url: str) -> tuple[frozenset[str], str]:
    """The servers of a metadata store, and the path below which it is used, however its URL is written."""
    rest = re.sub(r"^(metadata-store:)?(zk(\+\w+)?:(//)?)?", "", url.strip())
    hosts, _, path = rest.partition("/")
    servers = frozenset(one for one in re.split("[,;]", hosts) if one)
    return servers, path.strip("/").removesuffix("ledgers").rstrip("/")


def _class_of(method: str) -> str:
    return next(name for name, known in PROVIDERS.items() if known == method).rpartition(".")[2]


def parse_listeners(text: str) -> dict[str, tuple[str, str]]:
    """`name:pulsar://host:port,…` as name → (URL, URL over TLS). Raises ValueError."""
    listeners: dict[str, tuple[str, str]] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        name, separator, url = part.strip().partition(":")
        if not separator or not name or not url.startswith(("pulsar://", "pulsar+ssl://")):
            raise ValueError(f"{part.strip()!r} is not name:pulsar://host:port")
        plain, tls = listeners.get(name, ("", ""))
        listeners[name] = (plain, url) if url.startswith("pulsar+ssl://") else (url, tls)
    return listeners


# Setting → the values that leave the feature off, and what holds without it or what the operator can do instead. With
# any other value the broker does not start: it would silently do less than the operator asked for.
REFUSED_WHEN_ON: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "transactionCoordinatorEnabled": (("false",), "transactions are not there; clients get NotAllowedError"),
    "managedLedgerOffloadDriver": (("",), "offloading is not there; raise the retention instead"),
    "brokerInterceptors": (("",), "plugins are Java classes; remove them"),
    "messagingProtocols": (("",), "protocol plugins are Java classes; remove them"),
    "entryFilterNames": (("",), "entry filters are Java classes; remove them"),
    "functionsWorkerEnabled": (("false",), "functions are not there; run a functions worker beside the broker"),
    "replicateSubscriptionsState": (("false",), "subscriptions are not replicated"),
    "loadManagerClassName": (
        (
            "",
            "org.apache.pulsar.broker.loadbalance.impl.modularloadmanagerimpl",
            "org.apache.pulsar.broker.loadbalance.nooploadmanager",
        ),
        "bundles are owned as with ModularLoadManagerImpl; brokers of a cluster must agree on that",
    ),
    "schemaRegistryStorageClassName": (
        ("", "org.apache.pulsar.broker.service.schema.bookkeeperschemastoragefactory"),
        "schemas are stored in ledgers; other storages are Java classes",
    ),
    "resourceUsageTransportClassName": (
        ("",),
        "brokers do not tell each other what their topics used; each keeps the rates of a resource group by itself",
    ),
    "enableRunBookieTogether": (("false",), "run a bookie in its own process"),
    "webSocketServiceEnabled": (("false",), "the WebSocket API is not there"),
    "reppDisallowBookiePlacementInRegionFeatureName": (
        ("",),
        "features of BookKeeper are Java classes; to keep copies out of a region turn its bookies read-only",
    ),
    "reppDisableDurabilityFeatureName": (
        ("",),
        "features of BookKeeper are switched by Java classes; to ask for no durability, remove reppRegionsToWrite",
    ),
    "reppDisableDurabilityEnforcementFeature": (
        ("",),
        "features of BookKeeper are switched by Java classes; to ask for no durability, remove reppRegionsToWrite",
    ),
    "bookkeeperClientAuthenticationPlugin": (("",), "bookies know a broker by its certificate (bookkeeperTLS…)"),
    "saslJaasServerRoleTokenSignerSecretPath": (("",), "SASL is not there"),
}

_TUNING: Final = """
    activeConsumerFailoverConsistentHashing bookkeeperClientHealthCheckEnabled
    bookkeeperClientHealthCheckErrorThresholdPerInterval bookkeeperClientHealthCheckIntervalSeconds
    bookkeeperClientHealthCheckQuarantineTimeInSeconds bookkeeperClientNumIoThreads bookkeeperClientNumWorkerThreads
    bookkeeperClientReorderReadSequenceEnabled bookkeeperClientSpeculativeReadTimeoutInMillis
    bookkeeperEnableStickyReads bookkeeperExplicitLacIntervalInMills
    bookkeeperNumberOfChannelsPerBookie bookkeeperTLSTrustStorePasswordPath
    bookkeeperUseV2WireProtocol
    brokerServiceCompactionPhaseOneLoopTimeInSeconds cgroupsSubscriptionName
    clientLibraryVersionCheckEnabled delayedDeliveryFixedDelayDetectionLookahead
    delayedDeliveryTrackerFactoryClassName disableHttpDebugMethods
    dispatcherDispatchMessagesInSubscriptionThread dispatcherMinReadBatchSize
    dispatcherReadFailureBackoffInitialTimeInMs dispatcherReadFailureBackoffMandatoryStopTimeInMs
    dispatcherReadFailureBackoffMaxTimeInMs enableBusyWait
    enableReplicatedSubscriptions
    enableRunBookieAutoRecoveryTogether exposePreciseBacklogInPrometheus
    internalConfigurationStoreSessionTimeoutMillis isAuthorizationStateless
    keySharedLookAheadMsgInReplayThresholdPerConsumer keySharedLookAheadMsgInReplayThresholdPerSubscription
    managedLedgerCacheCopyEntries
    managedLedgerCacheEvictionFrequency managedLedgerCacheEvictionIntervalMs
    managedLedgerCacheEvictionTimeThresholdMillis managedLedgerCacheEvictionWatermark
    managedLedgerMetadataOperationsTimeoutSeconds managedLedgerNumSchedulerThreads managedLedgerNumWorkerThreads
    managedLedgerPrometheusStatsLatencyRolloverSeconds managedLedgerReadEntryTimeoutSeconds
    managedLedgerStatsPeriodSeconds managedLedgerUnackedRangesOpenCacheSetEnabled maxConcurrentHttpRequests
    maxPendingPublishRequestsPerConnectionResumeReads
    metadataStoreBatchingEnabled
    metadataStoreBatchingMaxDelayMillis metadataStoreBatchingMaxOperations metadataStoreBatchingMaxSizeKb
    metadataStoreCacheExpirySeconds metadataStoreOperationTimeoutSeconds numCacheExecutorThreadPoolSize
    numExecutorThreadPoolSize numHttpServerThreads numIOThreads numOrderedExecutorThreads
    persistentUnackedRangesWithMultipleEntriesEnabled preciseDispatcherFlowControl preciseTimeBasedBacklogQuotaCheck
    replicationConnectionsPerBroker replicationMetricsEnabled replicationProducerQueueSize replicatorPrefix
    resourceUsageTransportPublishIntervalInSecs
    skipBrokerShutdownOnOOM
    statsUpdateInitialDelayInSecs statusFilePath
    subscriptionKeySharedUseClassicPersistentImplementation
    subscriptionSharedUseClassicPersistentImplementation unblockStuckSubscriptionEnabled
    webSocketNumIoThreads zooKeeperCacheExpirySeconds zooKeeperOperationTimeoutSeconds zooKeeperSessionTimeoutMillis
    athenzDomainNames brokerClientSslProvider saslJaasClientAllowedIds
    saslJaasServerSectionName tlsProvider webServiceTlsProvider
"""
APACHE_SETTINGS_WITHOUT_EFFECT: Final = frozenset(_TUNING.split())


_TOKEN_PREFIX: Final = "tokenSettingPrefix"
_TOKEN_SETTINGS: Final = (
    "tokenSecretKey", "tokenPublicKey", "tokenPublicAlg", "tokenAuthClaim", "tokenAudienceClaim", "tokenAudience",
    "tokenAllowedClockSkewSeconds",
)  # fmt: skip


def _without_prefix(values: Mapping[str, str]) -> dict[str, str]:
    """With `tokenSettingPrefix=my` the settings of tokens are `mytokenSecretKey` and so on, and those without it are
    not looked at, as Apache's AuthenticationProviderToken has it."""
    prefix = values.get(_TOKEN_PREFIX, "").strip()
    kept = {name: value for name, value in values.items() if name != _TOKEN_PREFIX}
    if not prefix:
        return kept
    for name in _TOKEN_SETTINGS:
        kept.pop(name, None)
        if prefix + name in kept:
            kept[name] = kept.pop(prefix + name)
    return kept


def load_broker_config(
    values: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    *,
    overrides: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """The configuration from a file's *values*, the environment and *overrides*; the later ones win.

    Raises ConfigurationError with all problems, among them features that this broker does not have.
    """
    merged = dict(values)
    for key, value in (environ or {}).items():
        if key.startswith(ENVIRONMENT_PREFIX):
            merged[key.removeprefix(ENVIRONMENT_PREFIX)] = value
    merged = _without_prefix({**merged, **(overrides or {})})
    problems = [
        f"{name}={merged[name]}: {reason}"
        for name, (off, reason) in REFUSED_WHEN_ON.items()
        if name in merged and merged[name].strip().lower() not in off
    ]
    problems += apache_settings.problems(merged)
    ignored = APACHE_SETTINGS_WITHOUT_EFFECT | REFUSED_WHEN_ON.keys() | apache_settings.SHIPPED.keys()
    try:
        config = load(BrokerConfig, merged, ignored=ignored)
    except ConfigurationError as error:
        raise ConfigurationError("\n".join([*problems, str(error)])) from None
    if problems:
        raise ConfigurationError("\n".join(problems))
    return config
