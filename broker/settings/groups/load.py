"""The load manager. No IO."""

from dataclasses import dataclass
from typing import Final

from broker.settings.groups.cluster import BUNDLES_MAX
from magnetar_core.runtime.config import Group, setting

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


@dataclass(frozen=True, kw_only=True)
class LoadBalancing(Group):
    """The load manager: what it looks at, what it moves, what it splits."""

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
        "loadBalancerSheddingGracePeriodMinutes", 30, help="how long a bundle that was moved stays where it is"
    )
    shedding_threshold_percent: int = setting(
        "loadBalancerBrokerThresholdShedderPercentage",
        10,
        help="a difference in usage between two brokers that is left as it is, percent of a broker",
        least=1,
        most=100,
    )
    shedding_excluded: tuple[str, ...] = setting(
        "loadBalancerSheddingExcludedNamespaces", (), help="namespaces whose bundles are not moved"
    )
    shedding_strategy: str = setting(
        "loadBalancerLoadSheddingStrategy",
        f"{LOAD_CLASSES}AvgShedder",
        help=f"which bundles are moved: {ONE_BUNDLE}, or as Apache's ThresholdShedder, OverloadShedder, "
        "UniformLoadShedder, AvgShedder do it, by the full names of the classes",
        choices=SHEDDING_STRATEGIES,
        why="others are Java classes",
    )
    placement_strategy: str = setting(
        "loadBalancerLoadPlacementStrategy",
        f"{LOAD_CLASSES}AvgShedder",
        help="where the bundles go that Apache's shedding strategies move: LeastLongTermMessageRate, "
        "LeastResourceUsageWithWeight, RoundRobinBrokerSelector, AvgShedder, by the full names of the classes",
        choices=PLACEMENT_STRATEGIES,
        why="others are Java classes",
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
        "maxUnloadPercentage", 0.5, help="UniformLoadShedder, AvgShedder: share of a difference that is moved", most=1
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
        False,
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
        "loadBalancerNamespaceBundleMaxTopics", 1_000, help="topics of a bundle before it is split; 0: any"
    )
    bundle_max_sessions: int = setting(
        "loadBalancerNamespaceBundleMaxSessions", 1_000, help="its producers and consumers, the same"
    )
    bundle_max_messages: int = setting(
        "loadBalancerNamespaceBundleMaxMsgRate", 30_000, help="messages a second in and out, the same"
    )
    bundle_max_mbytes: int = setting(
        "loadBalancerNamespaceBundleMaxBandwidthMbytes", 100, help="MB a second in and out, the same"
    )
    namespace_max_bundles: int = setting(
        "loadBalancerNamespaceMaximumBundles",
        128,
        help="bundles of a namespace; with so many none is split by itself",
        least=1,
        most=BUNDLES_MAX,
    )
