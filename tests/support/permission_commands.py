"""The commands of the binary protocol whose permissions were recorded from Apache's broker (`permission_calls`)."""

from typing import Any, Final, NamedTuple

from broker.wire import pulsar_pb2 as wire

_T: Final = wire.BaseCommand
_TOP: Final = "persistent://t1/n1/top"
_NOPE: Final = "persistent://t1/n1/nope"
_SUBSCRIBE: Final = (
    _T.SUBSCRIBE,
    {"topic": _TOP, "subscription": "s1", "subType": wire.CommandSubscribe.Exclusive, "consumer_id": 1,
     "request_id": 1},
)  # fmt: skip


class Asked(NamedTuple):
    """One command, and the ones that have to be done before it."""

    name: str
    kind: int
    fields: dict[str, Any]
    before: tuple[tuple[int, dict[str, Any]], ...] = ()


def _schema() -> wire.Schema:
    return wire.Schema(name="", type=wire.Schema.String, schema_data=b"")


COMMANDS: Final = (
    Asked("PRODUCER", _T.PRODUCER, {"topic": _TOP, "producer_id": 1, "request_id": 1}),
    Asked("PRODUCER that makes a subscription", _T.PRODUCER,
          {"topic": _TOP, "producer_id": 1, "request_id": 1, "initial_subscription_name": "first"}),
    Asked("PRODUCER of a missing namespace", _T.PRODUCER,
          {"topic": "persistent://t1/none/top", "producer_id": 1, "request_id": 1}),
    Asked("SUBSCRIBE", *_SUBSCRIBE),
    Asked("SUBSCRIBE to a missing topic", _T.SUBSCRIBE,
          {**_SUBSCRIBE[1], "topic": _NOPE, "force_topic_creation": False}),
    Asked("LOOKUP", _T.LOOKUP, {"topic": _TOP, "request_id": 1}),
    Asked("LOOKUP in a missing namespace", _T.LOOKUP, {"topic": "persistent://t1/none/top", "request_id": 1}),
    Asked("LOOKUP in a missing tenant", _T.LOOKUP, {"topic": "persistent://none/none/top", "request_id": 1}),
    Asked("PARTITIONED_METADATA", _T.PARTITIONED_METADATA, {"topic": _TOP, "request_id": 1}),
    Asked("PARTITIONED_METADATA of a missing topic", _T.PARTITIONED_METADATA,
          {"topic": _NOPE, "request_id": 1, "metadata_auto_creation_enabled": False}),
    Asked("GET_TOPICS_OF_NAMESPACE", _T.GET_TOPICS_OF_NAMESPACE, {"namespace": "t1/n1", "request_id": 1}),
    Asked("GET_TOPICS_OF_NAMESPACE of a missing one", _T.GET_TOPICS_OF_NAMESPACE,
          {"namespace": "t1/none", "request_id": 1}),
    Asked("GET_SCHEMA", _T.GET_SCHEMA, {"topic": _TOP, "request_id": 1}),
    Asked("GET_SCHEMA of a missing topic", _T.GET_SCHEMA, {"topic": _NOPE, "request_id": 1}),
    Asked("GET_OR_CREATE_SCHEMA", _T.GET_OR_CREATE_SCHEMA, {"topic": _TOP, "request_id": 1, "schema": _schema()}),
    Asked("GET_LAST_MESSAGE_ID", _T.GET_LAST_MESSAGE_ID, {"consumer_id": 1, "request_id": 2}, (_SUBSCRIBE,)),
    Asked("SEEK", _T.SEEK, {"consumer_id": 1, "request_id": 2, "message_publish_time": 0}, (_SUBSCRIBE,)),
    Asked("CONSUMER_STATS", _T.CONSUMER_STATS, {"consumer_id": 1, "request_id": 2}, (_SUBSCRIBE,)),
    Asked("UNSUBSCRIBE", _T.UNSUBSCRIBE, {"consumer_id": 1, "request_id": 2}, (_SUBSCRIBE,)),
)  # fmt: skip
