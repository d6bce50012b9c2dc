"""The examples of Apache's documentation of `pulsar-admin` and the admin REST API, page by page.

Which commands, options and calls a page of the documentation of Pulsar 4.0 shows is kept, one line for each; names and
values are ours. A line that begins with a method (`GET /admin/v2/…`) is a call, with its body as JSON behind it; any
other is what a person types after `pulsar-admin`. What a page shows that cannot work (a path that is not there, an
option that is missing) is kept as it is: the answer to it is compared, too. Java examples make the same calls.

Names in brackets are filled in, so that braces are JSON's:

    <t>       the tenant: one for the commands, another for the calls
    <files>   a folder with a schema, a package and others        <broker>  the broker's lookup name, host:port
    <ledger>, <entry>   where a message lies in <t>/goods/books
"""

from collections.abc import Mapping, Sequence
from typing import Final

CALL_METHODS: Final = ("GET ", "PUT ", "POST ", "DELETE ")
WORLD: Final = (
    "tenants create <t> --admin-roles owner --allowed-clusters local",
    *(f"namespaces create <t>/{name} --bundles 1" for name in ("goods", "rules", "forms", "staff")),
    # A namespace each: for some milliseconds after an unload Apache's broker refuses to split or to unload the bundle.
    *(f"namespaces create <t>/{name} --bundles 1" for name in ("stock", "moved", "halves")),
    *(f"topics create <t>/goods/{name}" for name in ("books", "old")),
    "topics create-partitioned-topic <t>/goods/parcels --partitions 2",
    "topics create-subscription <t>/goods/books --subscription readers --messageId earliest",
    "topics create <t>/forms/order",
)
"""What is there before the first line; messages are then sent to <t>/goods/books."""

_BOOKS: Final = "persistent://<t>/goods/books"
_NEW: Final = "persistent://<t>/goods/new"
_SPLIT: Final = "persistent://<t>/goods/split"
_WHOLE: Final = "0x00000000_0xffffffff"
_RATE: Final = "--msg-dispatch-rate 500 --byte-dispatch-rate 65536 --dispatch-rate-period 1"

_TOPICS: Final = (
    "topics list <t>/goods",
    f"topics grant-permission --actions produce,consume --role clerk {_BOOKS}",
    f"topics permissions {_BOOKS}",
    f"topics revoke-permission --role clerk {_BOOKS}",
    "topics delete persistent://<t>/goods/old",
    f"topics unload {_BOOKS}",
    f"topics stats {_BOOKS}",
    f"topics stats-internal {_BOOKS}",
    f"topics peek-messages --count 3 --subscription readers {_BOOKS}",
    f"topics get-message-by-id -l <ledger> -e <entry> {_BOOKS}",
    f"topics examine-messages -i latest -m 1 {_BOOKS}",
    f"topics get-message-id {_BOOKS} -d 2020-02-02T10:00:00Z",
    f"topics skip --count 2 --subscription readers {_BOOKS}",
    f"topics clear-backlog --subscription readers {_BOOKS}",
    f"topics reset-cursor --subscription readers --time 10 {_BOOKS}",
    f"topics lookup {_BOOKS}",
    "topics partitioned-lookup persistent://<t>/goods/parcels",
    "topics partitioned-lookup persistent://<t>/goods/parcels --sort-by-broker",
    f"topics bundle-range {_BOOKS}",
    f"topics subscriptions {_BOOKS}",
    f"topics last-message-id {_BOOKS}",
    "topics get-backlog-size -m <ledger>:<entry> persistent://<t>/goods/parcels-partition-0",
    "topics get-deduplication-snapshot-interval <t>/goods/books",
    "topics set-deduplication-snapshot-interval <t>/goods/books -i 500",
    "topics remove-deduplication-snapshot-interval <t>/goods/books",
    "topics get-inactive-topic-policies <t>/goods/books",
    "topics set-inactive-topic-policies <t>/goods/books",
    "topics remove-inactive-topic-policies <t>/goods/books",
    "topics get-offload-policies <t>/goods/books",
    "topics set-offload-policies <t>/goods/books",
    "topics remove-offload-policies <t>/goods/books",
    f"topics create {_NEW}",
    f"topics delete {_NEW}",
    "topics list <t>/goods",
    f"topics stats {_BOOKS} --get-precise-backlog",
    f"topics stats-internal {_BOOKS}",
    f"topics create-partitioned-topic {_SPLIT} --partitions 3",
    f"topics create-missed-partitions {_SPLIT}",
    f"topics get-partitioned-topic-metadata {_SPLIT}",
    f"topics update-partitioned-topic {_SPLIT} --partitions 5",
    f"topics delete-partitioned-topic {_SPLIT}",
    "topics list-partitioned-topics <t>/goods",
    "topics partitioned-stats persistent://<t>/goods/parcels --per-partition",
    "topics partitioned-stats-internal persistent://<t>/goods/parcels",
    f"topics create-subscription --subscription printers {_BOOKS}",
    f"topics subscriptions {_BOOKS}",
    f"topics unsubscribe --subscription printers {_BOOKS}",
)

_P: Final = "/admin/v2/persistent/<t>/goods"

_TOPIC_CALLS: Final = (
    f"GET {_P}",
    "GET /admin/v2/non-persistent/<t>/goods",
    f'POST {_P}/books/permissions/clerk ["produce", "consume"]',
    f"GET {_P}/books/permissions",
    f"DELETE {_P}/books/permissions/clerk",
    f"DELETE {_P}/old",
    f"PUT {_P}/books/unload",
    f"GET {_P}/books/stats",
    f"GET {_P}/books/internalStats",
    f"GET {_P}/books/subscription/readers/position/1",
    f"GET {_P}/books/ledger/<ledger>/entry/<entry>",
    f"GET {_P}/books/examinemessage?initialPosition=latest&messagePosition=1",
    f"GET {_P}/books/messageid/1580637600000",
    f"POST {_P}/books/subscription/readers/skip/2",
    f"POST {_P}/books/subscription/readers/skip_all",
    f"POST {_P}/books/subscription/readers/resetcursor/1580637600000",
    "GET /lookup/v2/topic/persistent/<t>/goods/books",
    "GET /lookup/v2/topic/persistent/<t>/goods/books/bundle",
    f"GET {_P}/books/subscriptions",
    f"GET {_P}/books/lastMessageId",
    f'PUT {_P}/books/backlogSize {{"ledgerId": -1, "entryId": -1, "partitionIndex": -1}}',
    *(
        call
        for name, body in (
            ("deduplicationSnapshotInterval", '{"interval": 500}'), ("inactiveTopicPolicies", "{}"),
            ("offloadPolicies", "{}"),
        )
        for call in (
            f"GET /admin/v2/topics/<t>/goods/books/{name}", f"POST /admin/v2/topics/<t>/goods/books/{name} {body}",
            f"DELETE /admin/v2/topics/<t>/goods/books/{name}",
        )
    ),
    f"PUT {_P}/new",
    f"DELETE {_P}/new",
    f"GET {_P}",
    f"GET {_P}/books/stats",
    f"GET {_P}/books/internalStats",
    f"PUT {_P}/split/partitions 3",
    f"POST {_P}/split",
    f"GET {_P}/split/partitions",
    f"POST {_P}/split/partitions 5",
    f"DELETE {_P}/split/partitions",
    f"GET {_P}/partitioned",
    f"GET {_P}/parcels/partitioned-stats",
    f"GET {_P}/parcels/partitioned-internalStats",
    f"PUT {_P}/books/subscription/printers",
    f"GET {_P}/books/subscriptions",
    "DELETE /admin/v2/namespaces/<t>/goods/books/subscription/printers",
)  # fmt: skip

_NAMESPACES: Final = (
    "namespaces create <t>/made",
    "namespaces policies <t>/rules",
    "namespaces list <t>",
    "namespaces delete <t>/made",
    "namespaces set-clusters <t>/rules --clusters local",
    "namespaces get-clusters <t>/local/rules",
    "namespaces set-backlog-quota --limit 5G --limitTime 7200 --policy producer_request_hold <t>/rules",
    "namespaces get-backlog-quotas <t>/rules",
    "namespaces remove-backlog-quota <t>/rules",
    "namespaces set-persistence --bookkeeper-ack-quorum 2 --bookkeeper-ensemble 3 --bookkeeper-write-quorum 2"
    " --ml-mark-delete-max-rate 0 <t>/rules",
    "namespaces get-persistence <t>/rules",
    f"namespaces unload --bundle {_WHOLE} <t>/stock",
    f"namespaces unload --bundle {_WHOLE} --destinationBroker <broker> <t>/moved",
    f"namespaces split-bundle --bundle {_WHOLE} <t>/halves",
    "namespaces set-message-ttl --messageTTL 50 <t>/rules",
    "namespaces get-message-ttl <t>/rules",
    "namespaces remove-message-ttl <t>/rules",
    "namespaces clear-backlog --sub readers <t>/goods",
    f"namespaces clear-backlog --bundle {_WHOLE} --sub readers <t>/goods",
    "namespaces set-retention --size 20M --time 30m <t>/rules",
    "namespaces get-retention <t>/rules",
    f"namespaces set-dispatch-rate <t>/rules {_RATE}",
    "namespaces get-dispatch-rate <t>/rules",
    f"namespaces set-subscription-dispatch-rate <t>/rules {_RATE}",
    "namespaces get-subscription-dispatch-rate <t>/rules",
    f"namespaces set-replicator-dispatch-rate <t>/rules {_RATE}",
    "namespaces get-replicator-dispatch-rate <t>/rules",
    "namespaces get-deduplication-snapshot-interval <t>/rules",
    "namespaces set-deduplication-snapshot-interval <t>/rules --interval 500",
    "namespaces remove-deduplication-snapshot-interval <t>/rules",
    "namespaces unload <t>/stock",
    "namespaces set-entry-filters --desc some --entry-filters-name none --entry-filters-dir <files> <t>/rules",
    "namespaces get-entry-filters <t>/rules",
    "namespaces remove-entry-filters <t>/rules",
)

_N: Final = "/admin/v2/namespaces/<t>"
_RATE_BODY: Final = (
    '{"dispatchThrottlingRateInMsg": 500, "dispatchThrottlingRateInByte": 65536, "ratePeriodInSecond": 1}'
)

_NAMESPACE_CALLS: Final = (
    f"PUT {_N}/made",
    f"GET {_N}/rules",
    f"GET {_N}",
    f"DELETE {_N}/made",
    f'POST {_N}/rules/replication ["local"]',
    f"GET {_N}/rules/replication",
    f'POST {_N}/rules/backlogQuota {{"limitSize": 1000000, "limitTime": 7200, "policy": "producer_request_hold"}}',
    f"GET {_N}/rules/backlogQuotaMap",
    f"DELETE {_N}/rules/backlogQuota",
    f'POST {_N}/rules/persistence {{"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2,'
    ' "managedLedgerMaxMarkDeleteRate": 0}',
    f"GET {_N}/rules/persistence",
    f"PUT {_N}/stock/{_WHOLE}/unload",
    f"PUT {_N}/halves/{_WHOLE}/split",
    f"POST {_N}/rules/messageTTL 50",
    f"GET {_N}/rules/messageTTL",
    f"DELETE {_N}/rules/messageTTL",
    f"POST {_N}/goods/clearBacklog/readers",
    f"POST {_N}/goods/{_WHOLE}/clearBacklog/readers",
    f'POST {_N}/rules/retention {{"retentionTimeInMinutes": 30, "retentionSizeInMB": 20}}',
    f"GET {_N}/rules/retention",
    f"POST {_N}/rules/dispatchRate {_RATE_BODY}",
    f"GET {_N}/rules/dispatchRate",
    f"POST {_N}/rules/subscriptionDispatchRate {_RATE_BODY}",
    f"GET {_N}/rules/subscriptionDispatchRate",
    f"POST {_N}/rules/dispatchRate {_RATE_BODY}",
    f"GET {_N}/rules/dispatchRate",
    f"GET {_N}/rules/deduplicationSnapshotInterval",
    f"POST {_N}/rules/deduplicationSnapshotInterval 500",
    f"POST {_N}/rules/deduplicationSnapshotInterval",
    f"PUT {_N}/stock/unload",
    f'POST {_N}/rules/entryFilters {{"entryFilterNames": "none"}}',
    f"GET {_N}/rules/entryFilters",
    f"DELETE {_N}/rules/entryFilters",
)

_SCHEMA: Final = (
    r'{"type": "JSON", "schema": "{\"type\":\"record\",\"name\":\"Order\",\"fields\":[{\"name\":\"isbn\",'
    r'\"type\":[\"null\",\"string\"],\"default\":null}]}", "properties": {}}'
)

PAGES: Final[Mapping[str, Sequence[str]]] = {
    "Topics, pulsar-admin": _TOPICS,
    "Topics, REST": _TOPIC_CALLS,
    "Namespaces, pulsar-admin": _NAMESPACES,
    "Namespaces, REST": _NAMESPACE_CALLS,
    "Schemas, pulsar-admin": (
        "schemas upload --filename <files>/schema.json <t>/forms/order",
        "schemas get <t>/forms/order",
        "schemas get <t>/forms/order --version 0",
        "schemas extract --classname Code --jar <files>/code.jar --type avro",
        "schemas delete <t>/forms/order",
        "namespaces set-is-allow-auto-update-schema --enable <t>/forms",
        "namespaces set-is-allow-auto-update-schema --disable <t>/forms",
        "namespaces set-schema-validation-enforce --enable <t>/forms",
        "namespaces set-schema-validation-enforce --disable <t>/forms",
        "topicPolicies set-schema-compatibility-strategy FULL <t>/forms/order",
        "namespaces set-schema-compatibility-strategy --compatibility FULL <t>/forms",
        "topicPolicies get-schema-compatibility-strategy <t>/forms/order",
        "namespaces get-schema-compatibility-strategy <t>/forms",
    ),
    "Schemas, REST": (
        f"POST /admin/v2/schemas/<t>/forms/order/schema {_SCHEMA}",
        "GET /admin/v2/schemas/<t>/forms/order/schema",
        "GET /admin/v2/schemas/<t>/forms/order/schema/0",
        "DELETE /admin/v2/schemas/<t>/forms/order/schema",
        f'POST {_N}/forms/isAllowAutoUpdateSchema {{"isAllowAutoUpdateSchema": "true"}}',
        f'POST {_N}/forms/isAllowAutoUpdateSchema {{"isAllowAutoUpdateSchema": "false"}}',
        f'POST {_N}/forms/schemaValidationEnforced {{"schemaValidationEnforced": "true"}}',
        f'POST {_N}/forms/schemaValidationEnforced {{"schemaValidationEnforced": "false"}}',
        'PUT /admin/v2/persistent/<t>/forms/order/schemaCompatibilityStrategy "FULL"',
        f'PUT {_N}/forms/schemaCompatibilityStrategy "FULL"',
        "GET /admin/v2/persistent/<t>/forms/order/schemaCompatibilityStrategy",
        f"GET {_N}/forms/schemaCompatibilityStrategy",
    ),
    "Tenants, pulsar-admin": (
        "tenants list",
        "tenants create shop-a",
        "tenants create shop-b --admin-roles one,two,three --allowed-clusters local",
        "tenants create shop-c -r one -c local",
        "tenants get shop-b",
        "tenants delete shop-a",
        "tenants update shop-b --admin-roles one,two --allowed-clusters local",
    ),
    "Tenants, REST": (
        "GET /admin/v2/tenants",
        'PUT /admin/v2/tenants/shop-d {"adminRoles": ["one"], "allowedClusters": ["local"]}',
        "GET /admin/v2/tenants/shop-d",
        "DELETE /admin/v2/tenants/shop-d",
        'POST /admin/v2/tenants/shop-b {"adminRoles": ["three"], "allowedClusters": ["local"]}',
    ),
    "Brokers, pulsar-admin": (
        "brokers list local",
        "brokers leader-broker",
        "brokers namespaces local --url <broker>",
        "brokers update-dynamic-config --config brokerShutdownTimeoutMs --value 5000",
        "brokers list-dynamic-config",
        "brokers get-all-dynamic-config",
    ),
    "Brokers, REST": (
        "GET /admin/v2/brokers/local",
        "GET /admin/v2/brokers/leaderBroker",
        "GET /admin/v2/brokers/local/<broker>/ownedNamespaces",
        "POST /admin/v2/brokers/configuration/brokerShutdownTimeoutMs/6000",
        "GET /admin/v2/brokers/configuration",
        "GET /admin/v2/brokers/configuration/values",
    ),
    "Permissions, pulsar-admin": (
        "namespaces grant-permission <t>/staff --actions produce,consume --role clerk",
        "namespaces grant-permission <t>/staff --actions produce,consume --role 'desk.*'",
        "namespaces grant-permission <t>/staff --actions produce,consume --role '*.desk'",
        "namespaces grant-permission <t>/staff --actions produce,consume --role 'the.*.desk'",
        "namespaces permissions <t>/staff",
        "namespaces revoke-permission <t>/staff --role clerk",
    ),
    "Permissions, REST": (
        f'POST {_N}/staff/permissions/clerk ["produce", "consume"]',
        f"GET {_N}/staff/permissions",
        f"DELETE {_N}/staff/permissions/clerk",
    ),
    "Clusters, pulsar-admin": (
        "clusters create far --url http://127.0.0.1:1 --broker-url pulsar://127.0.0.1:2",
        "clusters get far",
        "clusters update far --url http://127.0.0.1:3 --broker-url pulsar://127.0.0.1:4",
        "clusters update-peer-clusters far --peer-clusters local",
        "clusters list",
        "clusters delete far",
    ),
    "Clusters, REST": (
        'PUT /admin/v2/clusters/away {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:2"}',
        "GET /admin/v2/clusters/away",
        'POST /admin/v2/clusters/away {"serviceUrl": "http://127.0.0.1:3", "brokerServiceUrl": "pulsar://127.0.0.1:4"}',
        'POST /admin/v2/clusters/away/peers ["local"]',
        "GET /admin/v2/clusters",
        "DELETE /admin/v2/clusters/away",
    ),
    "Get started, pulsar-admin": (
        "topics create-partitioned-topic persistent://<t>/goods/first --partitions 6",
        "topics update-partitioned-topic persistent://<t>/goods/first --partitions 8",
        "topics partitioned-stats-internal persistent://<t>/goods/first",
        "topics delete-partitioned-topic persistent://<t>/goods/first",
        "topics list <t>/goods",
    ),
    "Get started, REST": (
        f"PUT {_P}/second/partitions 4",
        f"POST {_P}/second/partitions 5",
        f"GET {_P}/second/partitioned-internalStats",
        f"DELETE {_P}/second/partitions",
        f"GET {_P}",
    ),
}  # fmt: skip
"""Each page, first what it shows of the tool, then of the REST API; the lines of a page run in their order."""


def is_call(line: str) -> bool:
    """Whether the line is a call of the REST API, and not a command."""
    return line.startswith(CALL_METHODS)
