"""The JSON values of policies: Apache's members, in Apache's order, with its defaults. No IO.

A value that a client sends is brought into the form in which Apache's brokers store it: members that it lacks get their
defaults, unknown ones are dropped, and numbers and truth values are read from text as well, as Jackson does.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.records.json_records import InvalidRecord
from broker.settings.quotas import DELETE_MODES, QUOTA_POLICIES
from magnetar_core.runtime.types import MIB

# The largest int and long of Java.
_INT: Final = 2**31 - 1
_LONG: Final = 2**63 - 1


class NotAValue(InvalidRecord):
    """The JSON is of another kind than the policy."""


Read = Callable[[Any], Any]
"""Brings a JSON value into the stored form. Raises InvalidRecord."""


def whole(value: Any, most: int = _INT) -> int:
    """A whole number; 0 for null. Raises NotAValue."""
    parsed = number(value)
    if not -most - 1 <= parsed <= most:
        raise NotAValue(f"{parsed} is out of range; the largest number here is {most}")
    return int(parsed)


def long(value: Any) -> int:
    """A whole number of 64 bits; 0 for null. Raises NotAValue."""
    return whole(value, _LONG)


def number(value: Any) -> float:
    """A number; 0 for null. Raises NotAValue."""
    if value is None:
        return 0
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise NotAValue(f"{value[:100]!r} is not a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NotAValue(f"{str(value)[:100]} is not a number")
    return value


def fraction(value: Any) -> float:
    """A number, stored with a decimal point; 0.0 for null. Raises NotAValue."""
    return float(number(value))


def truth(value: Any) -> bool:
    """true or false; false for null. Raises NotAValue."""
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return value != 0
    if value in ("true", "True", "TRUE", "false", "False", "FALSE", ""):
        return str(value).lower() == "true"
    raise NotAValue(f"{str(value)[:100]} is neither true nor false")


def text(value: Any) -> str | None:
    """A text, or null. Raises NotAValue."""
    if value is None or isinstance(value, str):
        return value
    raise NotAValue(f"{str(value)[:100]} is not a text")


def one_of(*names: str) -> Read:
    """One of *names*; null for anything else."""

    def read(value: Any) -> str | None:
        return value if text(value) in names else None

    return read


def names(value: Any) -> list[str]:
    """A list of texts, each once. Raises NotAValue."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise NotAValue("a list of names is needed")
    return list(dict.fromkeys(value))


def texts_by_name(value: Any) -> dict[str, str]:
    """An object whose members are texts. Raises NotAValue."""
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise NotAValue("a JSON object of texts is needed")
    return value


def record(members: Mapping[str, tuple[Read, Any]]) -> Read:
    """An object with *members*: name → (how its value is read, the value of one that is not given).

    A member whose value is None is left out. Null for a member that has no value of its own is the same as nothing.
    """

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise NotAValue("a JSON object is needed")
        filled = {
            name: default if name not in value or (default is None and value[name] is None) else read_value(value[name])
            for name, (read_value, default) in members.items()
        }
        return {name: item for name, item in filled.items() if item is not None}

    return read


def _or_none(of: Read) -> Read:
    """As *of*, but null stays null."""

    def read(value: Any) -> Any:
        return None if value is None else of(value)

    return read


publish_rate: Final = record({"publishThrottlingRateInMsg": (whole, -1), "publishThrottlingRateInByte": (long, -1)})

dispatch_rate: Final = record(
    {
        "dispatchThrottlingRateInMsg": (whole, 0),
        "dispatchThrottlingRateInByte": (long, 0),
        "relativeToPublishRate": (truth, False),
        "ratePeriodInSecond": (whole, 0),
    }
)

subscribe_rate: Final = record({"subscribeThrottlingRatePerConsumer": (whole, -1), "ratePeriodInSecond": (whole, 30)})

# Members that are not given stay as they are where a group is changed; a new group gets -1 for them (`tenancy`).
resource_group: Final = record(
    {
        "publishRateInMsgs": (_or_none(whole), None),
        "publishRateInBytes": (_or_none(long), None),
        "dispatchRateInMsgs": (_or_none(whole), None),
        "dispatchRateInBytes": (_or_none(long), None),
    }
)

_quota: Final = record(
    {
        "limit": (long, None),
        "limitSize": (long, None),
        "limitTime": (whole, 0),
        "policy": (one_of(*QUOTA_POLICIES), None),
    }
)


def backlog_quota(value: Any) -> dict[str, Any]:
    """A backlog quota; `limit` is the older name of `limitSize`. Raises NotAValue, InvalidRecord."""
    quota = _quota(value)
    if "policy" not in quota:
        raise NotAValue(f"the backlog quota has no policy; policies are {', '.join(QUOTA_POLICIES)}")
    size = quota.get("limitSize", quota.get("limit", 0))
    return {"limit": size, "limitSize": size, "limitTime": quota["limitTime"], "policy": quota["policy"]}


inactive_topics: Final = record(
    {
        "inactiveTopicDeleteMode": (one_of(*DELETE_MODES), None),
        "maxInactiveDurationSeconds": (whole, 0),
        "deleteWhileInactive": (truth, False),
    }
)

delayed_delivery: Final = record(
    {"tickTime": (long, 0), "active": (truth, False), "maxDeliveryDelayInMillis": (long, 0)}
)

retention: Final = record({"retentionTimeInMinutes": (whole, 0), "retentionSizeInMB": (long, 0)})

persistence: Final = record(
    {
        "bookkeeperEnsemble": (whole, 2),
        "bookkeeperWriteQuorum": (whole, 2),
        "bookkeeperAckQuorum": (whole, 2),
        "managedLedgerMaxMarkDeleteRate": (fraction, 0.0),
        "managedLedgerStorageClassName": (text, None),
    }
)

auto_topic_creation: Final = record(
    {"allowAutoTopicCreation": (truth, False), "topicType": (text, None), "defaultNumPartitions": (whole, None)}
)

auto_subscription_creation: Final = record({"allowAutoSubscriptionCreation": (truth, False)})

bookie_affinity: Final = record(
    {"bookkeeperAffinityGroupPrimary": (text, None), "bookkeeperAffinityGroupSecondary": (text, None)}
)

SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")

OFFLOAD_DRIVERS: Final = ("S3", "aws-s3", "google-cloud-storage", "filesystem", "azureblob", "aliyun-oss")

_offload: Final = record(
    {
        "offloadersDirectory": (text, "./offloaders"),
        "managedLedgerOffloadDriver": (text, None),
        "managedLedgerOffloadMaxThreads": (whole, 2),
        "managedLedgerOffloadReadThreads": (whole, 2),
        "managedLedgerOffloadPrefetchRounds": (whole, 1),
        "managedLedgerOffloadThresholdInBytes": (long, None),
        "managedLedgerOffloadThresholdInSeconds": (long, None),
        "managedLedgerOffloadDeletionLagInMillis": (long, None),
        "managedLedgerOffloadedReadPriority": (one_of("BOOKKEEPER_FIRST", "TIERED_STORAGE_FIRST"), None),
        "managedLedgerExtraConfigurations": (texts_by_name, {}),
        "s3ManagedLedgerOffloadRegion": (text, None),
        "s3ManagedLedgerOffloadBucket": (text, None),
        "s3ManagedLedgerOffloadServiceEndpoint": (text, None),
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes": (whole, 64 * MIB),
        "s3ManagedLedgerOffloadReadBufferSizeInBytes": (whole, 1 * MIB),
        "s3ManagedLedgerOffloadCredentialId": (text, None),
        "s3ManagedLedgerOffloadCredentialSecret": (text, None),
        "s3ManagedLedgerOffloadRole": (text, None),
        "s3ManagedLedgerOffloadRoleSessionName": (text, "pulsar-s3-offload"),
        "gcsManagedLedgerOffloadRegion": (text, None),
        "gcsManagedLedgerOffloadBucket": (text, None),
        "gcsManagedLedgerOffloadMaxBlockSizeInBytes": (whole, 128 * MIB),
        "gcsManagedLedgerOffloadReadBufferSizeInBytes": (whole, 1 * MIB),
        "gcsManagedLedgerOffloadServiceAccountKeyFile": (text, None),
        "fileSystemProfilePath": (text, None),
        "fileSystemURI": (text, None),
        "managedLedgerOffloadBucket": (text, None),
        "managedLedgerOffloadRegion": (text, None),
        "managedLedgerOffloadServiceEndpoint": (text, None),
        "managedLedgerOffloadMaxBlockSizeInBytes": (whole, None),
        "managedLedgerOffloadReadBufferSizeInBytes": (whole, None),
    }
)


def offload(value: Any) -> dict[str, Any]:
    """Policies of offloading, which is not there: they are stored and given back. Raises InvalidRecord."""
    policies = _offload(value)
    driver = policies.get("managedLedgerOffloadDriver")
    if driver is not None and driver not in OFFLOAD_DRIVERS:
        raise InvalidRecord(f"The driver is not supported, support value: {','.join(OFFLOAD_DRIVERS)}")
    # Apache's answers carry these three, which it works out from the driver.
    return {
        **policies,
        "s3Driver": driver in ("S3", "aws-s3"),
        "gcsDriver": driver == "google-cloud-storage",
        "fileSystemDriver": driver == "filesystem",
    }
