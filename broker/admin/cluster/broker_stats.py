"""`/admin/v2/broker-stats`: the topics of this broker by bundle, and its numbers (recorded: tests/vectors/http).

What describes a Java process is refused by name: there are no MBeans and no allocators here. Everything that this
broker measures is at `/metrics`.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from broker.admin.http import ADMIN, Refused, json_answer
from broker.admin.numbers.stats import consumer_stats, producer_stats
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.security.authorization import Operation
from broker.topic.rates.averages import BYTE_RATE, MESSAGE_RATE
from broker.topic.reading.subscription import Subscription
from broker.topic.topic import Topic

_NO_FILTERS = {f"filter{what}MsgCount": 0 for what in ("Processed", "Accepted", "Rejected", "Rescheduled")}
_OF_PUBLISHERS = ("msgRateIn", "msgThroughputIn", "averageMsgSize", "address", "producerId", "producerName",
                  "connectedSince", "clientVersion", "metadata")  # fmt: skip
_OF_CONSUMERS = ("address", "consumerName", "availablePermits", "connectedSince", "msgRateOut", "msgThroughputOut",
                 "msgRateRedeliver", "avgMessagesPerEntry", "messageAckRate", "clientVersion", "metadata")  # fmt: skip
_OF_SHARED_CONSUMERS = ("unackedMessages", "blockedConsumerOnUnackedMsgs")
_SHARED = ("Shared", "Key_Shared")


class BrokerStatsApi:
    """Statistics of the broker as a whole."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def add_routes(self, routes: Routes) -> None:
        path = ADMIN + "/broker-stats"
        routes.get(path + "/topics", self.topics, Operation.BROKER)
        routes.get(path + "/metrics", self.metrics, Operation.BROKER)
        routes.get(path + "/mbeans", _no_java, Operation.BROKER)
        routes.get(path + "/allocator-stats/{allocator}", _no_java, Operation.BROKER)

    async def topics(self, request: web.Request) -> web.Response:
        """namespace → bundle → persistent → topic → its statistics; as of the last period."""
        by_namespace: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
        for name, topic in list(self._broker.topics.items()):
            bundles = by_namespace.setdefault(name.namespace, {})
            bundle = bundles.setdefault(topic.policies.bundles.range_of(name), {"persistent": {}})
            bundle["persistent"][name.full] = _topic(topic)
        return json_answer(by_namespace)

    async def metrics(self, request: web.Request) -> web.Response:
        """Groups of numbers, each with what they are about. What is not measured here is left out."""
        broker = self._broker
        topics = list(broker.topics.values())
        groups = [_group({}, {"brk_ml_count": len(topics)})]
        spaces: dict[str, Counter[str]] = {}
        stored: dict[str, Counter[str]] = {}
        for topic in topics:
            space = spaces.setdefault(topic.name.namespace, Counter())
            space.update(_of_namespace(topic))
            ledgers = stored.setdefault(f"{topic.name.namespace}/persistent", Counter())
            ledgers.update(_of_ledger(topic))
        for counters in (spaces, stored):
            groups += [_group({"namespace": name}, dict(numbers)) for name, numbers in sorted(counters.items())]
        about = {"broker": broker.config.advertised_host, "cluster": broker.config.cluster_name}
        connections = {
            "brk_active_connections": len(broker.server.clients),
            "brk_connection_create_fail_count": broker.server.refused,
        }
        groups.append(_group({**about, "metric": "broker_connection"}, connections))
        return json_answer(groups)


async def _no_java(request: web.Request) -> web.Response:
    call_name = request.path.removeprefix(f"{ADMIN}/broker-stats/")
    raise Refused(501, f"{call_name}: this broker is no Java process and has none; its numbers are at /metrics")


def _group(dimensions: dict[str, str], metrics: Mapping[str, float]) -> dict[str, Any]:
    return {"metrics": dict(metrics), "dimensions": dimensions}


def _of_namespace(topic: Topic) -> dict[str, float]:
    rate_in, bytes_in, *_ = topic.rates.values
    subscriptions = list(topic.subscriptions.values())
    return {
        "brk_in_rate": rate_in,
        "brk_in_tp_rate": bytes_in,
        "brk_out_rate": sum((subscription.rates.values[MESSAGE_RATE] for subscription in subscriptions), 0.0),
        "brk_out_tp_rate": sum((subscription.rates.values[BYTE_RATE] for subscription in subscriptions), 0.0),
        "brk_msg_backlog": float(sum(subscription.cursor.backlog() for subscription in subscriptions)),
        "brk_storage_size": float(topic.ledger.bytes_total),
        "brk_no_of_producers": len(topic.producers),
        "brk_no_of_consumers": sum(len(subscription.consumers) for subscription in subscriptions),
        "brk_no_of_subscriptions": len(subscriptions),
    }


def _of_ledger(topic: Topic) -> dict[str, float]:
    _, bytes_in, written, read, missed = topic.rates.values
    return {
        "brk_ml_AddEntryMessagesRate": written,
        "brk_ml_AddEntryBytesRate": bytes_in,
        "brk_ml_ReadEntriesRate": read,
        "brk_ml_ReadEntriesOpsCacheMissesRate": missed,
        "brk_ml_NumberOfMessagesInBacklog": float(
            sum(
                subscription.cursor.backlog()
                for subscription in topic.subscriptions.values()
                if subscription.is_durable
            )
        ),
        "brk_ml_StoredMessagesSize": float(topic.ledger.bytes_total),
    }


def _topic(topic: Topic) -> dict[str, Any]:
    ledger = topic.ledger
    producers = [producer for producer in topic.producers.values() if not producer.is_waiting]
    subscriptions = dict(topic.subscriptions)
    durable = [
        subscription.cursor.mark_delete_position for subscription in subscriptions.values() if subscription.is_durable
    ]
    rate_in, bytes_in, *_ = topic.rates.values
    counted, _ = topic.gone
    for subscription in subscriptions.values():
        counted = counted.plus(subscription.counted)
    return {
        "publishers": [_only_members(producer_stats(producer), _OF_PUBLISHERS) for producer in producers],
        "replication": {},
        "subscriptions": {name: _subscription(topic, subscription) for name, subscription in subscriptions.items()},
        "producerCount": len(producers),
        "averageMsgSize": bytes_in / rate_in if rate_in else 0.0,
        "msgRateIn": rate_in,
        "msgRateOut": sum((subscription.rates.values[MESSAGE_RATE] for subscription in subscriptions.values()), 0.0),
        "msgInCount": topic.messages_in,
        "bytesInCount": topic.bytes_in,
        "msgOutCount": counted.messages,
        "bytesOutCount": counted.bytes,
        "msgThroughputIn": bytes_in,
        "msgThroughputOut": sum((subscription.rates.values[BYTE_RATE] for subscription in subscriptions.values()), 0.0),
        "storageSize": ledger.bytes_total,
        "backlogSize": ledger.bytes_after(min(durable)) if durable else 0,
        "pendingAddEntriesCount": ledger.pending_count,
        "filteredEntriesCount": 0,
    }


def _subscription(topic: Topic, subscription: Subscription) -> dict[str, Any]:
    rate, size, redelivery_rate, acked, _, expired = subscription.rates.values
    is_shared = subscription.type_name in _SHARED
    members = (*_OF_CONSUMERS, *_OF_SHARED_CONSUMERS) if is_shared else _OF_CONSUMERS
    cursor = subscription.cursor
    durable = topic.ledger.cursors.get(subscription.name)
    return {
        "consumers": [_only_members(consumer_stats(consumer), members) for consumer in subscription.consumers],
        "msgBacklog": cursor.backlog(),
        "msgRateExpired": expired,
        "msgRateOut": rate,
        "messageAckRate": acked,
        "msgThroughputOut": size,
        "msgRateRedeliver": redelivery_rate,
        "numberOfEntriesSinceFirstNotAckedMessage": topic.ledger.ledgers.entries_between(
            cursor.mark_delete_position, cursor.read_position
        ),
        "totalNonContiguousDeletedMessagesRange": 0 if durable is None else durable.range_count,
        "type": subscription.type_name or "None",
        **_NO_FILTERS,
        **(
            {
                "blockedSubscriptionOnUnackedMsgs": subscription.held.is_blocked,
                "unackedMessages": subscription.unacked_messages,
            }
            if is_shared
            else {}
        ),
    }


def _only_members(members: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    return {name: members[name] for name in wanted}
