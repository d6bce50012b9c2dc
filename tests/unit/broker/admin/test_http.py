"""Which status an error of the broker has; no server."""

import pytest

from broker.admin.bodies import BadJson
from broker.admin.http import status_of
from broker.errors import (
    BrokerError,
    ConsumerAssignError,
    IncompatibleSchema,
    InvalidTopicName,
    MetadataFailure,
    NotAllowed,
    NotReady,
    StorageFailure,
    SubscriptionNotFound,
    TopicNotFound,
    TopicUnreadable,
)
from broker.policies.rules import InvalidQuorums, NotAnObject
from broker.records.json_records import InvalidRecord, NoRecord, RecordChanged, RecordError, RecordExists, RecordInUse
from broker.tenancy.changes import ClusterInUse
from broker.tenancy.partitions import FewerPartitions


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (TopicNotFound, 404), (SubscriptionNotFound, 404), (NotAllowed, 412), (InvalidTopicName, 412),
        (IncompatibleSchema, 409), (NotReady, 503), (MetadataFailure, 500), (StorageFailure, 500),
        (TopicUnreadable, 500), (ConsumerAssignError, 500),
        (NoRecord, 404), (RecordExists, 409), (RecordChanged, 409), (RecordInUse, 409), (ClusterInUse, 412),
        (InvalidRecord, 412), (InvalidQuorums, 400), (NotAnObject, 400), (FewerPartitions, 422),
        (BadJson, 412),
    ],
)  # fmt: skip
def test_an_error_has_the_status_of_its_nearest_class(
    kind: type[BrokerError] | type[RecordError] | type[BadJson], status: int
) -> None:
    assert status_of(kind("why")) == status
