from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubscriptionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXCLUSIVE: _ClassVar[SubscriptionType]
    SHARED: _ClassVar[SubscriptionType]
    FAILOVER: _ClassVar[SubscriptionType]
    KEY_SHARED: _ClassVar[SubscriptionType]
EXCLUSIVE: SubscriptionType
SHARED: SubscriptionType
FAILOVER: SubscriptionType
KEY_SHARED: SubscriptionType

class MessageId(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "partition", "batch_index", "batch_size")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    partition: int
    batch_index: int
    batch_size: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., partition: _Optional[int] = ..., batch_index: _Optional[int] = ..., batch_size: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("payload", "key", "properties", "event_time_ms", "deliver_at_ms", "ordering_key", "key_is_base64", "is_null", "batch_index", "sequence_id")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_IS_BASE64_FIELD_NUMBER: _ClassVar[int]
    IS_NULL_FIELD_NUMBER: _ClassVar[int]
    BATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    key: str
    properties: _containers.ScalarMap[str, str]
    event_time_ms: int
    deliver_at_ms: int
    ordering_key: bytes
    key_is_base64: bool
    is_null: bool
    batch_index: int
    sequence_id: int
    def __init__(self, payload: _Optional[bytes] = ..., key: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., event_time_ms: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., ordering_key: _Optional[bytes] = ..., key_is_base64: bool = ..., is_null: bool = ..., batch_index: _Optional[int] = ..., sequence_id: _Optional[int] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("type", "data", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    type: int
    data: bytes
    properties: _containers.ScalarMap[str, str]
    def __init__(self, type: _Optional[int] = ..., data: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("topic", "authoritative")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AUTHORITATIVE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    authoritative: bool
    def __init__(self, topic: _Optional[str] = ..., authoritative: bool = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("address", "ask_there", "authoritative")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ASK_THERE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITATIVE_FIELD_NUMBER: _ClassVar[int]
    address: str
    ask_there: bool
    authoritative: bool
    def __init__(self, address: _Optional[str] = ..., ask_there: bool = ..., authoritative: bool = ...) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("topic", "create")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    create: bool
    def __init__(self, topic: _Optional[str] = ..., create: bool = ...) -> None: ...

class GetTopicResponse(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("open", "first_sequence_id", "messages", "batches")
    class Access(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SHARED: _ClassVar[PublishRequest.Access]
        EXCLUSIVE: _ClassVar[PublishRequest.Access]
        WAIT_FOR_EXCLUSIVE: _ClassVar[PublishRequest.Access]
        EXCLUSIVE_WITH_FENCING: _ClassVar[PublishRequest.Access]
    SHARED: PublishRequest.Access
    EXCLUSIVE: PublishRequest.Access
    WAIT_FOR_EXCLUSIVE: PublishRequest.Access
    EXCLUSIVE_WITH_FENCING: PublishRequest.Access
    class Open(_message.Message):
        __slots__ = ("topic", "producer_name", "schema", "mix_keys", "access", "topic_epoch")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
        SCHEMA_FIELD_NUMBER: _ClassVar[int]
        MIX_KEYS_FIELD_NUMBER: _ClassVar[int]
        ACCESS_FIELD_NUMBER: _ClassVar[int]
        TOPIC_EPOCH_FIELD_NUMBER: _ClassVar[int]
        topic: str
        producer_name: str
        schema: Schema
        mix_keys: bool
        access: PublishRequest.Access
        topic_epoch: int
        def __init__(self, topic: _Optional[str] = ..., producer_name: _Optional[str] = ..., schema: _Optional[_Union[Schema, _Mapping]] = ..., mix_keys: bool = ..., access: _Optional[_Union[PublishRequest.Access, str]] = ..., topic_epoch: _Optional[int] = ...) -> None: ...
    class Batch(_message.Message):
        __slots__ = ("messages", "count", "key", "key_is_base64", "ordering_key")
        MESSAGES_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        KEY_FIELD_NUMBER: _ClassVar[int]
        KEY_IS_BASE64_FIELD_NUMBER: _ClassVar[int]
        ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
        messages: bytes
        count: int
        key: str
        key_is_base64: bool
        ordering_key: bytes
        def __init__(self, messages: _Optional[bytes] = ..., count: _Optional[int] = ..., key: _Optional[str] = ..., key_is_base64: bool = ..., ordering_key: _Optional[bytes] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    open: PublishRequest.Open
    first_sequence_id: int
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    batches: _containers.RepeatedCompositeFieldContainer[PublishRequest.Batch]
    def __init__(self, open: _Optional[_Union[PublishRequest.Open, _Mapping]] = ..., first_sequence_id: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[PublishRequest.Batch, _Mapping]]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("opened", "receipts", "refusals", "partitions")
    class Opened(_message.Message):
        __slots__ = ("producer_name", "last_sequence_id", "max_message_bytes", "topic_epoch", "is_waiting", "batch_messages_max", "batch_bytes_max")
        PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
        LAST_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
        MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
        TOPIC_EPOCH_FIELD_NUMBER: _ClassVar[int]
        IS_WAITING_FIELD_NUMBER: _ClassVar[int]
        BATCH_MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
        BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
        producer_name: str
        last_sequence_id: int
        max_message_bytes: int
        topic_epoch: int
        is_waiting: bool
        batch_messages_max: int
        batch_bytes_max: int
        def __init__(self, producer_name: _Optional[str] = ..., last_sequence_id: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., topic_epoch: _Optional[int] = ..., is_waiting: bool = ..., batch_messages_max: _Optional[int] = ..., batch_bytes_max: _Optional[int] = ...) -> None: ...
    class Receipt(_message.Message):
        __slots__ = ("first_sequence_id", "count", "first_id")
        FIRST_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        FIRST_ID_FIELD_NUMBER: _ClassVar[int]
        first_sequence_id: int
        count: int
        first_id: MessageId
        def __init__(self, first_sequence_id: _Optional[int] = ..., count: _Optional[int] = ..., first_id: _Optional[_Union[MessageId, _Mapping]] = ...) -> None: ...
    class Refusal(_message.Message):
        __slots__ = ("first_sequence_id", "count", "reason")
        FIRST_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        first_sequence_id: int
        count: int
        reason: str
        def __init__(self, first_sequence_id: _Optional[int] = ..., count: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    opened: PublishResponse.Opened
    receipts: _containers.RepeatedCompositeFieldContainer[PublishResponse.Receipt]
    refusals: _containers.RepeatedCompositeFieldContainer[PublishResponse.Refusal]
    partitions: int
    def __init__(self, opened: _Optional[_Union[PublishResponse.Opened, _Mapping]] = ..., receipts: _Optional[_Iterable[_Union[PublishResponse.Receipt, _Mapping]]] = ..., refusals: _Optional[_Iterable[_Union[PublishResponse.Refusal, _Mapping]]] = ..., partitions: _Optional[int] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("open", "permits", "acks", "cumulative_ack", "nack", "seek", "unsubscribe", "leaving", "ack_runs", "request_id")
    class HashRange(_message.Message):
        __slots__ = ("start", "end")
        START_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        start: int
        end: int
        def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...
    class Open(_message.Message):
        __slots__ = ("topic", "subscription", "type", "consumer_name", "from_earliest", "is_reader", "start_id", "start_inclusive", "sticky_ranges", "allow_out_of_order", "priority", "schema", "read_compacted", "must_exist", "takes_batches")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        TYPE_FIELD_NUMBER: _ClassVar[int]
        CONSUMER_NAME_FIELD_NUMBER: _ClassVar[int]
        FROM_EARLIEST_FIELD_NUMBER: _ClassVar[int]
        IS_READER_FIELD_NUMBER: _ClassVar[int]
        START_ID_FIELD_NUMBER: _ClassVar[int]
        START_INCLUSIVE_FIELD_NUMBER: _ClassVar[int]
        STICKY_RANGES_FIELD_NUMBER: _ClassVar[int]
        ALLOW_OUT_OF_ORDER_FIELD_NUMBER: _ClassVar[int]
        PRIORITY_FIELD_NUMBER: _ClassVar[int]
        SCHEMA_FIELD_NUMBER: _ClassVar[int]
        READ_COMPACTED_FIELD_NUMBER: _ClassVar[int]
        MUST_EXIST_FIELD_NUMBER: _ClassVar[int]
        TAKES_BATCHES_FIELD_NUMBER: _ClassVar[int]
        topic: str
        subscription: str
        type: SubscriptionType
        consumer_name: str
        from_earliest: bool
        is_reader: bool
        start_id: MessageId
        start_inclusive: bool
        sticky_ranges: _containers.RepeatedCompositeFieldContainer[ConsumeRequest.HashRange]
        allow_out_of_order: bool
        priority: int
        schema: Schema
        read_compacted: bool
        must_exist: bool
        takes_batches: bool
        def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., type: _Optional[_Union[SubscriptionType, str]] = ..., consumer_name: _Optional[str] = ..., from_earliest: bool = ..., is_reader: bool = ..., start_id: _Optional[_Union[MessageId, _Mapping]] = ..., start_inclusive: bool = ..., sticky_ranges: _Optional[_Iterable[_Union[ConsumeRequest.HashRange, _Mapping]]] = ..., allow_out_of_order: bool = ..., priority: _Optional[int] = ..., schema: _Optional[_Union[Schema, _Mapping]] = ..., read_compacted: bool = ..., must_exist: bool = ..., takes_batches: bool = ...) -> None: ...
    class Nack(_message.Message):
        __slots__ = ("ids", "delay_ms")
        IDS_FIELD_NUMBER: _ClassVar[int]
        DELAY_MS_FIELD_NUMBER: _ClassVar[int]
        ids: _containers.RepeatedCompositeFieldContainer[MessageId]
        delay_ms: int
        def __init__(self, ids: _Optional[_Iterable[_Union[MessageId, _Mapping]]] = ..., delay_ms: _Optional[int] = ...) -> None: ...
    class Seek(_message.Message):
        __slots__ = ("id", "time_ms", "to_end")
        ID_FIELD_NUMBER: _ClassVar[int]
        TIME_MS_FIELD_NUMBER: _ClassVar[int]
        TO_END_FIELD_NUMBER: _ClassVar[int]
        id: MessageId
        time_ms: int
        to_end: bool
        def __init__(self, id: _Optional[_Union[MessageId, _Mapping]] = ..., time_ms: _Optional[int] = ..., to_end: bool = ...) -> None: ...
    class Run(_message.Message):
        __slots__ = ("first", "last")
        FIRST_FIELD_NUMBER: _ClassVar[int]
        LAST_FIELD_NUMBER: _ClassVar[int]
        first: MessageId
        last: int
        def __init__(self, first: _Optional[_Union[MessageId, _Mapping]] = ..., last: _Optional[int] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PERMITS_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    ACK_RUNS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    open: ConsumeRequest.Open
    permits: int
    acks: _containers.RepeatedCompositeFieldContainer[MessageId]
    cumulative_ack: MessageId
    nack: ConsumeRequest.Nack
    seek: ConsumeRequest.Seek
    unsubscribe: bool
    leaving: bool
    ack_runs: _containers.RepeatedCompositeFieldContainer[ConsumeRequest.Run]
    request_id: int
    def __init__(self, open: _Optional[_Union[ConsumeRequest.Open, _Mapping]] = ..., permits: _Optional[int] = ..., acks: _Optional[_Iterable[_Union[MessageId, _Mapping]]] = ..., cumulative_ack: _Optional[_Union[MessageId, _Mapping]] = ..., nack: _Optional[_Union[ConsumeRequest.Nack, _Mapping]] = ..., seek: _Optional[_Union[ConsumeRequest.Seek, _Mapping]] = ..., unsubscribe: bool = ..., leaving: bool = ..., ack_runs: _Optional[_Iterable[_Union[ConsumeRequest.Run, _Mapping]]] = ..., request_id: _Optional[int] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("opened", "deliveries", "rewound", "done", "error", "partitions")
    class Opened(_message.Message):
        __slots__ = ("consumer_name", "last_id")
        CONSUMER_NAME_FIELD_NUMBER: _ClassVar[int]
        LAST_ID_FIELD_NUMBER: _ClassVar[int]
        consumer_name: str
        last_id: MessageId
        def __init__(self, consumer_name: _Optional[str] = ..., last_id: _Optional[_Union[MessageId, _Mapping]] = ...) -> None: ...
    class Delivery(_message.Message):
        __slots__ = ("ledger_id", "entry_id", "batch_size", "redelivery_count", "publish_time_ms", "producer_name", "schema_version", "messages", "problem", "batch")
        LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
        ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
        BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
        REDELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
        PUBLISH_TIME_MS_FIELD_NUMBER: _ClassVar[int]
        PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
        SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
        MESSAGES_FIELD_NUMBER: _ClassVar[int]
        PROBLEM_FIELD_NUMBER: _ClassVar[int]
        BATCH_FIELD_NUMBER: _ClassVar[int]
        ledger_id: int
        entry_id: int
        batch_size: int
        redelivery_count: int
        publish_time_ms: int
        producer_name: str
        schema_version: bytes
        messages: _containers.RepeatedCompositeFieldContainer[Message]
        problem: str
        batch: bytes
        def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., batch_size: _Optional[int] = ..., redelivery_count: _Optional[int] = ..., publish_time_ms: _Optional[int] = ..., producer_name: _Optional[str] = ..., schema_version: _Optional[bytes] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., problem: _Optional[str] = ..., batch: _Optional[bytes] = ...) -> None: ...
    class Rewound(_message.Message):
        __slots__ = ("after_id",)
        AFTER_ID_FIELD_NUMBER: _ClassVar[int]
        after_id: MessageId
        def __init__(self, after_id: _Optional[_Union[MessageId, _Mapping]] = ...) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    REWOUND_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    opened: ConsumeResponse.Opened
    deliveries: _containers.RepeatedCompositeFieldContainer[ConsumeResponse.Delivery]
    rewound: ConsumeResponse.Rewound
    done: int
    error: str
    partitions: int
    def __init__(self, opened: _Optional[_Union[ConsumeResponse.Opened, _Mapping]] = ..., deliveries: _Optional[_Iterable[_Union[ConsumeResponse.Delivery, _Mapping]]] = ..., rewound: _Optional[_Union[ConsumeResponse.Rewound, _Mapping]] = ..., done: _Optional[int] = ..., error: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class GetLastMessageIdRequest(_message.Message):
    __slots__ = ("topic", "read_compacted")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    READ_COMPACTED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    read_compacted: bool
    def __init__(self, topic: _Optional[str] = ..., read_compacted: bool = ...) -> None: ...

class GetLastMessageIdResponse(_message.Message):
    __slots__ = ("id", "partitions")
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    id: MessageId
    partitions: int
    def __init__(self, id: _Optional[_Union[MessageId, _Mapping]] = ..., partitions: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic", "force")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    force: bool
    def __init__(self, topic: _Optional[str] = ..., force: bool = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBrokersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBrokersResponse(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchTopicsRequest(_message.Message):
    __slots__ = ("namespace", "pattern")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pattern: str
    def __init__(self, namespace: _Optional[str] = ..., pattern: _Optional[str] = ...) -> None: ...

class WatchTopicsResponse(_message.Message):
    __slots__ = ("new_topics", "deleted_topics", "more")
    NEW_TOPICS_FIELD_NUMBER: _ClassVar[int]
    DELETED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    new_topics: _containers.RepeatedScalarFieldContainer[str]
    deleted_topics: _containers.RepeatedScalarFieldContainer[str]
    more: bool
    def __init__(self, new_topics: _Optional[_Iterable[str]] = ..., deleted_topics: _Optional[_Iterable[str]] = ..., more: bool = ...) -> None: ...

class GetTopicStatsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class GetTopicStatsResponse(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class GetSchemaRequest(_message.Message):
    __slots__ = ("topic", "version")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    version: bytes
    def __init__(self, topic: _Optional[str] = ..., version: _Optional[bytes] = ...) -> None: ...

class GetSchemaResponse(_message.Message):
    __slots__ = ("schema", "version")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    schema: Schema
    version: bytes
    def __init__(self, schema: _Optional[_Union[Schema, _Mapping]] = ..., version: _Optional[bytes] = ...) -> None: ...
