"""The admin API over HTTP, with Apache's paths, status codes and JSON. (pulsar.md 7, admin-rest.md)

A call about a topic is answered by the broker that owns it; others redirect there (307). Success without a body is
204, errors are `{"reason": "…"}`. What is not there yet answers 501 and says so.
"""

import asyncio
import dataclasses
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, quote_plus

import aiohttp
from aiohttp import web

from broker.admin.bodies import (
    BadJson,
    message_id_json,
    position_from_json,
    properties_from_json,
    schema_from_json,
    schema_json,
)
from broker.admin.stats import broker_samples, internal_stats, sum_stats, topic_stats
from broker.broker import Broker
from broker.config import BUNDLES_MAX, PARTITIONS_MAX, BrokerConfig
from broker.errors import (
    BrokerError,
    ConsumerBusy,
    IncompatibleSchema,
    InvalidTopicName,
    NotAllowed,
    NotReady,
    SubscriptionNotFound,
    TopicNotFound,
    TopicUnreadable,
)
from broker.names import PERSISTENT, Bundles, TopicName, java_url_decode, topic_of_managed_ledger
from broker.ownership.ownership import BundleOwnership
from broker.policies import new_cluster, new_policies, parse_partitions, parse_policies, to_json
from broker.topic.subscription import Subscription
from broker.topic.topic import Topic
from magnetar_core.bookkeeper.client.quorum import ENSEMBLE_SIZE_MAX
from magnetar_core.bookkeeper.metadata.store import NO_NODE, MetadataError, Node, NoNode, NotEmpty, VersionConflict
from magnetar_core.runtime.config import describe
from magnetar_core.runtime.http_server import HttpServer, foreign_origin, unwanted_type
from magnetar_core.runtime.json_text import parse_json
from magnetar_core.runtime.observe import Metrics
from magnetar_core.runtime.types import Corruption
from managed_ledger.errors import IncompatibleSchema as RegistryRefused
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.position import LATEST, Position
from managed_ledger.schemas.compatibility import Schema, Strategy, check_valid
from managed_ledger.schemas.registry import apart

log = logging.getLogger(__name__)

# Policies are kilobytes; a schema may be larger.
BODY_BYTES_MAX: Final = 4 * 1024 * 1024

# A partition's owner may first have to take its bundle over from a dead broker.
FORWARD_TIMEOUT_S: Final = 30.0

# The health check writes and reads one message; Apache gives up after so long, too.
HEALTH_TIMEOUT_S: Final = 10.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Path below a namespace → member of the policies, the method that sets it, and what kind of JSON it takes.
POLICIES: Final[Mapping[str, tuple[str, str, type | tuple[type, ...]]]] = {
    "deduplication": ("deduplicationEnabled", "POST", bool),
    "retention": ("retention_policies", "POST", dict),
    "persistence": ("persistence", "POST", dict),
    "schemaCompatibilityStrategy": ("schema_compatibility_strategy", "PUT", str),
    "isAllowAutoUpdateSchema": ("is_allow_auto_update_schema", "POST", bool),
    "schemaValidationEnforced": ("schema_validation_enforced", "POST", bool),
    "encryptionRequired": ("encryption_required", "POST", bool),
    "autoTopicCreation": ("autoTopicCreationOverride", "POST", dict),
    "autoSubscriptionCreation": ("autoSubscriptionCreationOverride", "POST", dict),
    "delayedDelivery": ("delayed_delivery_policies", "POST", dict),
    "maxProducersPerTopic": ("max_producers_per_topic", "POST", int),
    "maxConsumersPerTopic": ("max_consumers_per_topic", "POST", int),
    "maxConsumersPerSubscription": ("max_consumers_per_subscription", "POST", int),
    "maxUnackedMessagesPerConsumer": ("max_unacked_messages_per_consumer", "POST", int),
    "maxUnackedMessagesPerSubscription": ("max_unacked_messages_per_subscription", "POST", int),
    "subscriptionTypesEnabled": ("subscription_types_enabled", "POST", list),
    "replication": ("replication_clusters", "POST", list),
    "properties": ("properties", "PUT", dict),
}


# What may stand in a part of a path, after `%2F` and the like are decoded, and what it is called in the refusal. A
# part never is more than one name, and none is that of a folder: they become paths in the metadata store.
_ENTITY_PART: Final = (re.compile(r"(?!\.{1,2}\Z)[-=:.\w]{1,255}", re.ASCII), "letters, digits and -=:._ are")
_NAME_PART: Final = (
    re.compile(r"(?!\.{1,2}\Z)[^/\x00-\x1f\x7f]+"),
    "it has no `/` and no control characters",
)
_ANY_PART: Final = (re.compile(r"[^\x00-\x1f\x7f]+"), "it is not empty and has no control characters")
_PARTS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "cluster": _ENTITY_PART,
    "tenant": _ENTITY_PART,
    "namespace": _ENTITY_PART,
    "policy": _ENTITY_PART,
    "version": _NAME_PART,
    "domain": _ENTITY_PART,
    "bundle": (re.compile(r"0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}"), "it is 0xXXXXXXXX_0xXXXXXXXX"),
    "timestamp": (re.compile(r"[0-9]{1,18}"), "it is a time in milliseconds"),
    "broker": _NAME_PART,
    "topic": _NAME_PART,
    "subscription": _ANY_PART,  # it is encoded once more before it becomes a path
    "rest": (re.compile(r".*", re.DOTALL), ""),
}
# Of all of them: ZooKeeper's own limit for a whole path is below a megabyte.
_PART_BYTES_MAX: Final = 3 * 1024


class _Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _status_of(error: BrokerError) -> int:
    if isinstance(error, TopicNotFound | SubscriptionNotFound):
        return 404
    if isinstance(error, NotAllowed | ConsumerBusy | InvalidTopicName):
        return 412
    if isinstance(error, IncompatibleSchema):
        return 409
    return 503 if isinstance(error, NotReady) else 500


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except _Refused as error:
        return _refusal(error.status, str(error))
    except BadJson as error:
        return _refusal(412, str(error))
    except BrokerError as error:
        return _refusal(_status_of(error), str(error))
    except VersionConflict as error:
        return _refusal(409, f"changed at the same time: {error}")
    except (MetadataError, ManagedLedgerError, Corruption) as error:
        log.warning("%s %s: %s", request.method, request.path, error)
        return _refusal(500, str(error))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _refusal(error.status, error.text or error.reason)
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        return _refusal(500, f"{type(error).__name__}: {error}")


@web.middleware
async def _checked(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Nothing reaches a handler but names that are ones, from those who may send them."""
    for part, text in request.match_info.items():
        pattern, wanted = _PARTS[part]
        if len(text) > _PART_BYTES_MAX or pattern.fullmatch(text) is None:
            raise _Refused(412, f"{part} name {text[:200]!r} is not valid: {wanted}")
    if (reason := foreign_origin(request)) is not None:
        raise _Refused(403, reason)
    if (reason := unwanted_type(request)) is not None:
        raise _Refused(415, reason)
    return await handler(request)


def _json(value: object, status: int = 200) -> web.Response:
    """An answer whose type is named as Apache names it: without a character set."""
    return web.Response(body=json.dumps(value).encode(), status=status, content_type="application/json")


def _word(text: str) -> web.Response:
    """A bare word. Apache calls that JSON as well."""
    return web.Response(body=text.encode(), content_type="application/json")


def _refusal(status: int, reason: str) -> web.Response:
    return _json({"reason": reason}, status=status)


class AdminServer:
    """HTTP of one broker."""

    def __init__(self, broker: Broker, ownership: BundleOwnership, *, version: str) -> None:
        self._broker = broker
        self._ownership = ownership
        self._version = version
        self._store = broker.store
        self._http: HttpServer | None = None
        self._probe = _Probe()
        self.metrics = Metrics()
        self.metrics.add(lambda: broker_samples(broker, ownership.owned_bundles))

    async def start(self, listening: socket.socket) -> None:
        """Serve on a bound socket."""
        app = web.Application(middlewares=[_errors, _checked], client_max_size=BODY_BYTES_MAX)
        self._routes(app.router)
        self._http = HttpServer(app)
        await self._http.start(listening)

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.stop()

    def _routes(self, router: web.UrlDispatcher) -> None:
        admin = "/admin/v2"
        router.add_get("/metrics", self.get_metrics)
        router.add_get("/metrics/", self.get_metrics)
        router.add_get("/status.html", self.ready)
        router.add_get(admin + "/brokers", self.list_brokers)
        router.add_get(admin + "/brokers/health", self.health)
        router.add_get(admin + "/brokers/ready", self.ready)
        router.add_get(admin + "/brokers/version", self.get_version)
        router.add_get(admin + "/brokers/leaderBroker", self.leader)
        router.add_get(admin + "/brokers/internal-configuration", self.internal_configuration)
        router.add_get(admin + "/brokers/configuration", self.setting_names)
        router.add_get(admin + "/brokers/configuration/runtime", self.settings)
        router.add_get(admin + "/brokers/configuration/values", self.changed_settings)
        router.add_get(admin + "/brokers/backlog-quota-check", self.not_there)
        router.add_get(admin + "/brokers/{cluster}", self.list_brokers)
        router.add_get(admin + "/brokers/{cluster}/{broker}/ownedNamespaces", self.owned_namespaces)
        router.add_get(admin + "/clusters", self.list_clusters)
        cluster = admin + "/clusters/{cluster}"
        router.add_get(cluster, self.get_cluster)
        router.add_put(cluster, self.create_cluster)
        router.add_post(cluster, self.update_cluster)
        router.add_delete(cluster, self.delete_cluster)
        router.add_get(admin + "/tenants", self.list_tenants)
        tenant = admin + "/tenants/{tenant}"
        router.add_get(tenant, self.get_tenant)
        router.add_put(tenant, self.create_tenant)
        router.add_post(tenant, self.update_tenant)
        router.add_delete(tenant, self.delete_tenant)
        router.add_get(admin + "/namespaces/{tenant}", self.list_namespaces)
        namespace = admin + "/namespaces/{tenant}/{namespace}"
        router.add_get(namespace, self.get_namespace)
        router.add_put(namespace, self.create_namespace)
        router.add_delete(namespace, self.delete_namespace)
        router.add_get(namespace + "/topics", self.namespace_topics)
        router.add_get(namespace + "/bundles", self.get_bundles)
        router.add_put(namespace + "/unload", self.unload_namespace)
        router.add_put(namespace + "/{bundle}/unload", self.unload_bundle)
        router.add_route("*", namespace + "/{policy}", self.policy)
        for domain in ("persistent", "non-persistent"):
            self._topic_routes(router, f"{admin}/{domain}", domain)
        schemas = admin + "/schemas/{tenant}/{namespace}/{topic}"
        router.add_get(schemas + "/schema", self.get_schema)
        router.add_get(schemas + "/schema/{version}", self.get_schema)
        router.add_get(schemas + "/schemas", self.get_schemas)
        router.add_post(schemas + "/schema", self.post_schema)
        router.add_delete(schemas + "/schema", self.delete_schema)
        router.add_post(schemas + "/compatibility", self.check_schema)
        router.add_post(schemas + "/version", self.schema_version)
        router.add_get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", self.lookup)
        router.add_get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle", self.lookup_bundle)
        router.add_route("*", "/admin/{version}/functions/{rest:.*}", self.no_functions)
        router.add_route("*", "/admin/{rest:.*}", self.not_there)

    def _topic_routes(self, router: web.UrlDispatcher, root: str, domain: str) -> None:
        router.add_get(root + "/{tenant}/{namespace}", self.list_topics)
        router.add_get(root + "/{tenant}/{namespace}/partitioned", self.list_partitioned)
        if domain != PERSISTENT:
            return
        topic = root + "/{tenant}/{namespace}/{topic}"
        router.add_put(topic, self.create_topic)
        router.add_delete(topic, self.delete_topic)
        router.add_get(topic + "/partitions", self.get_partitions)
        router.add_put(topic + "/partitions", self.create_partitioned)
        router.add_post(topic + "/partitions", self.update_partitions)
        router.add_delete(topic + "/partitions", self.delete_partitioned)
        router.add_get(topic + "/stats", self.stats)
        router.add_get(topic + "/internalStats", self.internal_stats)
        router.add_post(topic + "/createMissedPartitions", self.create_missed_partitions)
        router.add_get(topic + "/partitioned-stats", self.partitioned_stats)
        router.add_get(topic + "/partitioned-internalStats", self.partitioned_internal_stats)
        router.add_get(topic + "/properties", self.get_properties)
        router.add_put(topic + "/properties", self.update_properties)
        router.add_delete(topic + "/properties", self.delete_property)
        router.add_get(topic + "/messageid/{timestamp}", self.message_id_at)
        router.add_get(topic + "/subscriptions", self.list_subscriptions)
        router.add_get(topic + "/lastMessageId", self.last_message_id)
        router.add_put(topic + "/unload", self.unload_topic)
        router.add_post(topic + "/terminate", self.terminate)
        subscription = topic + "/subscription/{subscription}"
        router.add_put(subscription, self.create_subscription)
        router.add_delete(subscription, self.delete_subscription)
        router.add_post(subscription + "/skip_all", self.skip_all)
        router.add_post(subscription + "/resetcursor", self.reset_to_position)
        router.add_post(subscription + "/resetcursor/{timestamp}", self.reset_to_time)

    async def not_there(self, request: web.Request) -> web.Response:
        raise _Refused(501, f"{request.method} {request.path} is not supported by this broker yet")

    async def no_functions(self, request: web.Request) -> web.Response:
        raise _Refused(409, "Pulsar Functions are not served by this broker")

    # ------------------------------------------------------------------------------- brokers

    async def get_metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self.metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def ready(self, request: web.Request) -> web.Response:
        return _word("ok")

    async def get_version(self, request: web.Request) -> web.Response:
        return _word(self._version)

    async def list_brokers(self, request: web.Request) -> web.Response:
        cluster = request.match_info.get("cluster", self._broker.config.cluster_name)
        if cluster != self._broker.config.cluster_name:
            raise _Refused(404, f"Cluster {cluster} is not that of this broker ({self._broker.config.cluster_name})")
        return _json(sorted(await self._ownership.brokers()))

    async def leader(self, request: web.Request) -> web.Response:
        broker_id, url = await self._ownership.leader()
        if not broker_id:
            raise _Refused(404, "Couldn't find leader broker")
        return _json({"brokerId": broker_id, "serviceUrl": url})

    async def internal_configuration(self, request: web.Request) -> web.Response:
        url = self._broker.config.metadata_store_url
        return _json(
            {
                "zookeeperServers": url,
                "configurationStoreServers": url,
                "metadataStoreUrl": url,
                "configurationMetadataStoreUrl": url,
                "ledgersRootPath": "/ledgers",
            }
        )

    async def setting_names(self, request: web.Request) -> web.Response:
        return _json([name for name, _, _ in describe(BrokerConfig)])

    async def settings(self, request: web.Request) -> web.Response:
        """Every setting with the value that is in force, as text."""
        config = self._broker.config
        fields = [field for field in dataclasses.fields(config) if "name" in field.metadata]
        return _json({field.metadata["name"]: _setting_text(getattr(config, field.name)) for field in fields})

    async def changed_settings(self, request: web.Request) -> web.Response:
        """Settings that were changed while the broker runs: none can be."""
        return _json({})

    async def owned_namespaces(self, request: web.Request) -> web.Response:
        if request.match_info["broker"] != self._ownership.broker_id:
            raise _Refused(404, f"ask broker {request.match_info['broker']} itself")
        shown = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return _json(dict.fromkeys(self._ownership.owned_bundles, shown))

    async def health(self, request: web.Request) -> web.Response:
        """Write one message to a topic of this broker's own and read it back."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await self._write_and_read()
        except (TimeoutError, ManagedLedgerError, MetadataError) as error:
            raise _Refused(500, f"the storage does not work: {str(error) or 'no answer in time'}") from error
        return _word("ok")

    async def _write_and_read(self) -> None:
        name = f"pulsar/{quote(self._ownership.broker_id, safe=':.-')}/persistent/healthcheck"
        ledger = await self._broker.ledgers.open(name)
        ledger.listener = self._probe
        payload = f"health {self._broker.now_ms()}".encode()
        done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        ledger.append([payload], [done])
        position = await done
        found = ledger.read(position, 1, len(payload))
        entries = found if isinstance(found, list | tuple) else await found  # type: ignore[misc]
        if bytes(entries[0].data) != payload:
            raise Corruption(f"{name}: entry {position} is not what was written")

    # ---------------------------------------------------------------------- clusters and tenants

    async def list_clusters(self, request: web.Request) -> web.Response:
        return _json([name for name in await self._store.children("/admin/clusters") if name != "global"])

    async def get_cluster(self, request: web.Request) -> web.Response:
        return _json(await self._json(f"/admin/clusters/{request.match_info['cluster']}", "Cluster"))

    async def create_cluster(self, request: web.Request) -> web.Response:
        name = request.match_info["cluster"]
        body = await self._body(request) or {}
        value = {**new_cluster(), **_dict(body)}
        await self._create(f"/admin/clusters/{name}", value, "Cluster already exists")
        return web.Response(status=200)

    async def update_cluster(self, request: web.Request) -> web.Response:
        body = _dict(await self._body(request))
        await self._change(f"/admin/clusters/{request.match_info['cluster']}", "Cluster", lambda old: {**old, **body})
        return web.Response(status=200)

    async def delete_cluster(self, request: web.Request) -> web.Response:
        name = request.match_info["cluster"]
        await self._json(f"/admin/clusters/{name}", "Cluster")
        if (user := await self._user_of_cluster(name)) is not None:
            raise _Refused(412, f"Cluster {name} is not empty: {user}")
        await self._delete(f"/admin/clusters/{name}", "Cluster")
        return web.Response(status=204)

    async def _user_of_cluster(self, name: str) -> str | None:
        """Who would be left without the record of a cluster; None: nobody."""
        if name == self._broker.config.cluster_name:
            return "its brokers are running, this one among them"
        for tenant in await self._store.children("/admin/policies"):
            for namespace in await self._store.children(f"/admin/policies/{tenant}"):
                node = await self._store.get(f"/admin/policies/{tenant}/{namespace}")
                if node is not None and name in _names(_record(node), "replication_clusters"):
                    return f"namespace {tenant}/{namespace} uses it"
            node = await self._store.get(f"/admin/policies/{tenant}")
            if node is not None and name in _names(_record(node), "allowedClusters"):
                return f"tenant {tenant} may use it"
        return None

    async def list_tenants(self, request: web.Request) -> web.Response:
        return _json(await self._store.children("/admin/policies"))

    async def get_tenant(self, request: web.Request) -> web.Response:
        return _json(await self._json(f"/admin/policies/{request.match_info['tenant']}", "Tenant"))

    async def create_tenant(self, request: web.Request) -> web.Response:
        name = request.match_info["tenant"]
        value = await self._tenant(request)
        await self._create(f"/admin/policies/{name}", value, "Tenant already exist")
        return web.Response(status=204)

    async def update_tenant(self, request: web.Request) -> web.Response:
        value = await self._tenant(request)
        await self._change(f"/admin/policies/{request.match_info['tenant']}", "Tenant", lambda old: {**old, **value})
        return web.Response(status=204)

    async def _tenant(self, request: web.Request) -> dict[str, Any]:
        body = _dict(await self._body(request) or {})
        for member in ("allowedClusters", "adminRoles"):
            names = body.get(member) or []
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise _Refused(412, f"{member} must be a list of names")
        clusters = body.get("allowedClusters") or []
        if not clusters:
            raise _Refused(412, "Clusters can not be empty")
        known = await self._store.children("/admin/clusters")
        missing = [name for name in clusters if name not in known]
        if missing:
            raise _Refused(412, f"Clusters do not exist: {', '.join(missing)}")
        return {"adminRoles": body.get("adminRoles") or [], "allowedClusters": clusters}

    async def delete_tenant(self, request: web.Request) -> web.Response:
        path = f"/admin/policies/{request.match_info['tenant']}"
        _refuse_force(request)
        if await self._store.children(path):
            raise _Refused(409, "The tenant still has active namespaces")
        await self._delete(path, "Tenant")
        return web.Response(status=204)

    # -------------------------------------------------------------------------------- namespaces

    @staticmethod
    def _namespace_of(request: web.Request) -> str:
        return f"{request.match_info['tenant']}/{request.match_info['namespace']}"

    async def list_namespaces(self, request: web.Request) -> web.Response:
        tenant = request.match_info["tenant"]
        await self._json(f"/admin/policies/{tenant}", "Tenant")
        return _json([f"{tenant}/{name}" for name in await self._store.children(f"/admin/policies/{tenant}")])

    async def get_namespace(self, request: web.Request) -> web.Response:
        return _json(await self._json(f"/admin/policies/{self._namespace_of(request)}", "Namespace"))

    async def create_namespace(self, request: web.Request) -> web.Response:
        tenant, name = request.match_info["tenant"], request.match_info["namespace"]
        if await self._store.get(f"/admin/policies/{tenant}") is None:
            raise _Refused(404, "Tenant does not exist")
        body = _dict(await self._body(request) or {})
        bundles = _bundles(body.get("bundles") or {}, self._broker.config.default_bundles)
        value = new_policies(self._broker.config.cluster_name, len(bundles.texts) - 1)
        value["bundles"]["boundaries"] = bundles.texts
        given = {key: item for key, item in body.items() if item is not None}
        for policy, (member, _, _) in POLICIES.items():
            if member in given:
                _check_policy(policy, given[member])
        value.update({key: item for key, item in given.items() if key != "bundles"})
        value.setdefault("is_allow_auto_update_schema", self._broker.config.schema_auto_update)
        if not value.get("replication_clusters"):
            value["replication_clusters"] = [self._broker.config.cluster_name]
        _check_readable(value)
        await self._create(f"/admin/policies/{tenant}/{name}", value, "Namespace already exists")
        local = {"bundles": value["bundles"], "migrated": False}
        await self._store.put(f"/admin/local-policies/{tenant}/{name}", to_json(local))
        return web.Response(status=204)

    async def delete_namespace(self, request: web.Request) -> web.Response:
        namespace = self._namespace_of(request)
        _refuse_force(request)
        await self._json(f"/admin/policies/{namespace}", "Namespace")
        if await self._broker.ledgers.list(namespace) or await self._partitioned(namespace):
            raise _Refused(409, "Cannot delete non empty namespace")
        await self._unload_all(namespace)
        for path in (f"/admin/local-policies/{namespace}", f"/admin/policies/{namespace}"):
            try:
                await self._store.delete(path)
            except NoNode:
                continue
        return web.Response(status=204)

    async def namespace_topics(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "PERSISTENT").upper()
        await self._broker.namespace(self._namespace_of(request))
        names = await self._broker.topics_of_namespace(
            self._namespace_of(request), persistent=mode != "NON_PERSISTENT", non_persistent=mode != "PERSISTENT"
        )
        return _json(sorted(names))

    async def get_bundles(self, request: web.Request) -> web.Response:
        policies = await self._broker.namespace(self._namespace_of(request))
        texts = policies.bundles.texts
        return _json({"boundaries": texts, "numBundles": len(texts) - 1})

    async def unload_namespace(self, request: web.Request) -> web.Response:
        await self._unload_all(self._namespace_of(request))
        return web.Response(status=204)

    async def _unload_all(self, namespace: str) -> None:
        """Give back every bundle of a namespace, whichever broker has it. Raises TopicNotFound."""
        for text in (await self._broker.namespace(namespace)).bundles.ranges:
            bundle = f"{namespace}/{text}"
            owner = await self._ownership.owner_of(bundle)
            if owner is None:
                continue
            if owner == self._ownership.address:
                await self._unload(bundle)
            else:
                await self._ask("PUT", f"{owner.http_url}/admin/v2/namespaces/{bundle}/unload", bundle)

    async def unload_bundle(self, request: web.Request) -> web.Response:
        namespace, text = self._namespace_of(request), request.match_info["bundle"]
        if text not in (await self._broker.namespace(namespace)).bundles.ranges:
            raise _Refused(412, f"Invalid bundle range {text}")
        owner = await self._ownership.owner_of(f"{namespace}/{text}")
        if owner == self._ownership.address:
            await self._unload(f"{namespace}/{text}")
        elif owner is not None:
            raise web.HTTPTemporaryRedirect(owner.http_url + request.rel_url.raw_path)
        return web.Response(status=204)

    async def _unload(self, bundle: str) -> None:
        await self._ownership.unload(bundle, lambda: self._broker.unload_bundle(bundle))

    async def policy(self, request: web.Request) -> web.Response:
        """Read, set and remove one policy of a namespace."""
        name = request.match_info["policy"]
        if name not in POLICIES:
            return await self.not_there(request)
        member, setter, _ = POLICIES[name]
        path = f"/admin/policies/{self._namespace_of(request)}"
        if request.method == "GET":
            value = (await self._json(path, "Namespace")).get(member)
            if value is None:
                return web.Response(status=200)  # Apache's answer for what is not set: an empty body
            return _json(value)
        if request.method == "DELETE":
            await self._change(path, "Namespace", lambda old: {k: v for k, v in old.items() if k != member})
            return web.Response(status=204)
        if request.method not in (setter, "POST", "PUT"):
            raise _Refused(405, f"{request.method} is not possible here")
        value = await self._body(request)
        _check_policy(name, value)

        def change(old: dict[str, Any]) -> dict[str, Any]:
            _check_readable(new := {**old, member: value})
            return new

        await self._change(path, "Namespace", change)
        return web.Response(status=200 if name == "replication" else 204)

    # ------------------------------------------------------------------------------------ topics

    def _topic_name(self, request: web.Request) -> TopicName:
        info = request.match_info
        domain = info.get("domain", PERSISTENT)
        local = info["topic"]
        return TopicName.parse(f"{domain}://{info['tenant']}/{info['namespace']}/{local}")

    async def _here(self, request: web.Request, name: TopicName) -> None:
        """Go on only if this broker owns the topic; else redirect to the one that does."""
        authoritative = request.query.get("authoritative", "false") == "true"
        await self._broker.namespace(name.namespace)
        located = await self._ownership.locate(name, authoritative=authoritative)
        if located.here:
            return
        assert located.broker is not None, "a topic that is not here is somewhere else"
        if not located.broker.http_url:
            raise _Refused(503, f"{name} is served by {located.broker.service_url}, which has no HTTP")
        flag = "true" if located.redirect and located.authoritative else "false"
        query = {**request.query, "authoritative": flag}
        text = "&".join(f"{quote(key)}={quote(value)}" for key, value in query.items())
        raise web.HTTPTemporaryRedirect(f"{located.broker.http_url}{request.rel_url.raw_path}?{text}")

    async def _loaded(self, request: web.Request) -> Topic:
        """The topic, opened if it exists. Raises TopicNotFound, or redirects."""
        name = self._topic_name(request)
        if not await self._broker.ledgers.exists(name.managed_ledger_name):
            raise TopicNotFound(f"Topic {name} not found")
        await self._here(request, name)
        return await self._broker.create_topic(name)

    async def list_topics(self, request: web.Request) -> web.Response:
        namespace = self._namespace_of(request)
        await self._broker.namespace(namespace)
        is_persistent = "/non-persistent/" not in request.path
        return _json(
            sorted(
                await self._broker.topics_of_namespace(
                    namespace, persistent=is_persistent, non_persistent=not is_persistent
                )
            )
        )

    async def _partitioned(self, namespace: str) -> list[str]:
        names = await self._store.children(f"/admin/partitioned-topics/{namespace}/persistent")
        return [topic_of_managed_ledger(f"{namespace}/persistent/{name}").full for name in names]

    async def list_partitioned(self, request: web.Request) -> web.Response:
        namespace = self._namespace_of(request)
        await self._broker.namespace(namespace)
        if "/non-persistent/" in request.path:
            return _json([])
        return _json(sorted(await self._partitioned(namespace)))

    async def create_topic(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        properties = properties_from_json(await self._body(request))
        await self._broker.namespace(name.namespace)
        if await self._partition_count(name):
            raise _Refused(409, "This topic already exists")
        await self._here(request, name)
        if await self._broker.ledgers.exists(name.managed_ledger_name):
            raise _Refused(409, "This topic already exists")
        topic = await self._broker.create_topic(name)
        if properties:
            await topic.ledger.set_properties({**topic.ledger.properties, **properties})
        return web.Response(status=204)

    async def delete_topic(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        if await self._partition_count(name):
            raise _Refused(409, f"{name} is a partitioned topic, use the partitioned delete")
        if not await self._broker.ledgers.exists(name.managed_ledger_name):
            raise TopicNotFound(f"Topic {name} not found")
        force = request.query.get("force") == "true"
        await self._here(request, name)
        try:
            topic = await self._broker.create_topic(name)
        except TopicUnreadable as error:
            if not force:
                raise _Refused(500, f"{error}; it can only be deleted by force") from error
        else:
            if topic.is_in_use and not force:
                raise _Refused(412, f"Topic {name} has connected producers or consumers; use force")
        # Subscriptions without consumers do not stand in the way, as they do when a topic is removed by itself.
        await self._broker.delete_topic(name, force=True)
        return web.Response(status=204)

    async def _partition_count(self, name: TopicName) -> int:
        if name.partition >= 0:
            return 0
        node = await self._store.get(name.partitions_path)
        return 0 if node is None else parse_partitions(node.value, node.path)

    async def get_partitions(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        create = request.query.get("checkAllowAutoCreation") == "true"
        count = await self._broker.partitions(name, create=create)
        answer: dict[str, Any] = {"partitions": count, "deleted": False}
        if count and (properties := (await self._json(name.partitions_path, "Topic")).get("properties")):
            answer["properties"] = properties
        return _json(answer)

    async def create_partitioned(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        await self._broker.namespace(name.namespace)
        count = await self._wanted_partitions(request)
        body = await self._body(request)
        properties = properties_from_json(body.get("properties") if isinstance(body, dict) else None)
        exists = await self._broker.ledgers.exists(name.managed_ledger_name)
        if exists or await self._partition_count(name):
            raise _Refused(409, "This topic already exists")
        value = {"partitions": count, "deleted": False, **({"properties": properties} if properties else {})}
        await self._create(name.partitions_path, value, "This topic already exists")
        await self._make_partitions(name, 0, count)
        return web.Response(status=204)

    async def _wanted_partitions(self, request: web.Request) -> int:
        body = await self._body(request)
        count = body.get("partitions") if isinstance(body, dict) else body
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise _Refused(406, "Number of partitions should be more than 0")
        if count > PARTITIONS_MAX:
            raise _Refused(406, f"Number of partitions should be less than or equal to {PARTITIONS_MAX}")
        return count

    async def create_missed_partitions(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        count = await self._partition_count(name)
        if not count:
            raise TopicNotFound(f"Topic {name} is not a partitioned topic")
        await self._make_partitions(name, 0, count)
        return web.Response(status=204)

    async def _make_partitions(self, name: TopicName, first: int, count: int) -> None:
        """Make the topics themselves, so that they are listed and exist for other brokers."""
        for number in range(first, count):
            path = f"/managed-ledgers/{name.with_partition(number).managed_ledger_name}"
            try:
                await self._store.put(path, b"", NO_NODE)
            except VersionConflict:
                continue

    async def update_partitions(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        count = await self._wanted_partitions(request)
        before = await self._partition_count(name)
        if not before:
            raise TopicNotFound(f"Topic {name} is not a partitioned topic")
        if count < before:
            raise _Refused(422, f"Desired partitions {count} can't be less than the current partitions {before}.")
        await self._change(name.partitions_path, "Topic", lambda old: {**old, "partitions": count})
        await self._make_partitions(name, before, count)
        return web.Response(status=204)

    async def delete_partitioned(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        count = await self._partition_count(name)
        if not count:
            raise TopicNotFound(f"Topic {name} not found.")
        force = request.query.get("force") == "true"
        await self._for_partitions("DELETE", name, count, f"?force={str(force).lower()}", fine=(404,))
        await self._store.delete(name.partitions_path)
        return web.Response(status=204)

    async def _for_partitions(
        self, method: str, name: TopicName, count: int, suffix: str, body: Any = None, *, fine: tuple[int, ...] = ()
    ) -> dict[TopicName, Any]:
        """What the owner of each partition answers; those that answer one of the *fine* statuses are left out.

        Raises _Refused with the answer of the first partition that is refused otherwise.
        """
        found = {}
        for number in range(count):
            partition = name.with_partition(number)
            located = await self._ownership.locate(partition, authoritative=False)
            base = self._ownership.address.http_url
            if not located.here and located.broker is not None:
                base = located.broker.http_url
            url = f"{base}/admin/v2/persistent/{partition.namespace}/{quote(partition.local, safe='')}{suffix}"
            try:
                found[partition] = await self._ask(method, url, str(partition), body)
            except _Refused as error:
                if error.status not in fine:
                    raise
        return found

    async def _ask(self, method: str, url: str, about: str, body: Any = None) -> Any:
        """Another broker's answer (or our own); raises _Refused with its status."""
        timeout = aiohttp.ClientTimeout(total=FORWARD_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, url, json=body) as answer,
            ):
                text, status = await answer.text(), answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _Refused(503, f"{about}: {url} does not answer: {str(error) or 'time-out'}") from error
        if status >= 400:
            try:
                reason = json.loads(text).get("reason", text)
            except (ValueError, AttributeError):
                reason = text
            raise _Refused(status, f"{about}: {reason}")
        return json.loads(text) if text else None

    async def stats(self, request: web.Request) -> web.Response:
        return _json(topic_stats(await self._loaded(request), self._ownership.broker_id))

    async def internal_stats(self, request: web.Request) -> web.Response:
        topic = await self._loaded(request)
        ledgers = await self._registry.ledgers(topic.name.schema_id)
        return _json(internal_stats(topic, ledgers))

    async def partitioned_stats(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        count = await self._partition_count(name)
        if not count:
            raise TopicNotFound(f"Partitioned topic {name} not found")
        found = await self._for_partitions("GET", name, count, "/stats", fine=(404,))
        total = sum_stats(
            {partition.full: one for partition, one in found.items()},
            count,
            per_partition=request.query.get("perPartition", "true") != "false",
        )
        return _json(total)

    async def partitioned_internal_stats(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        count = await self._partition_count(name)
        if not count:
            raise TopicNotFound(f"Partitioned topic {name} not found")
        found = await self._for_partitions("GET", name, count, "/internalStats", fine=(404,))
        return _json(
            {
                "metadata": {"partitions": count, "deleted": False},
                "partitions": {partition.full: one for partition, one in found.items()},
            }
        )

    async def get_properties(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        if await self._partition_count(name):
            return _json((await self._json(name.partitions_path, "Topic")).get("properties") or {})
        return _json(dict((await self._loaded(request)).ledger.properties))

    async def update_properties(self, request: web.Request) -> web.Response:
        given = properties_from_json(await self._body(request))
        return await self._change_properties(request, lambda old: {**old, **given})

    async def delete_property(self, request: web.Request) -> web.Response:
        key = request.query.get("key", "")
        return await self._change_properties(request, lambda old: {k: v for k, v in old.items() if k != key})

    async def _change_properties(
        self, request: web.Request, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> web.Response:
        name = self._topic_name(request)
        if await self._partition_count(name):
            await self._change(
                name.partitions_path, "Topic", lambda old: {**old, "properties": change(old.get("properties") or {})}
            )
        else:
            ledger = (await self._loaded(request)).ledger
            await ledger.set_properties(change(dict(ledger.properties)))
        return web.Response(status=204)

    async def message_id_at(self, request: web.Request) -> web.Response:
        """The first message that was published at a time or later; the end if there is none."""
        topic = await self._loaded(request)
        found = await topic.position_at_ms(_milliseconds(request))
        if found == LATEST:
            found = topic.ledger.last_confirmed
        return _json(message_id_json(found, topic.name.partition))

    async def unload_topic(self, request: web.Request) -> web.Response:
        topic = await self._loaded(request)
        await self._broker.unload(topic.name)
        return web.Response(status=204)

    async def terminate(self, request: web.Request) -> web.Response:
        topic = await self._loaded(request)
        last = await topic.terminate()
        return _json(message_id_json(last, topic.name.partition))

    async def last_message_id(self, request: web.Request) -> web.Response:
        topic = await self._loaded(request)
        position, batch_index = await topic.last_message()
        found = message_id_json(position, topic.name.partition, batch_index)
        if batch_index >= 0:
            found |= {"outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
        return _json(found)

    # ------------------------------------------------------------------------------ subscriptions

    async def list_subscriptions(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        count = await self._partition_count(name)
        if count:
            found = await self._for_partitions("GET", name, count, "/subscriptions", fine=(404,))
            return _json(sorted({one for names in found.values() for one in names}))
        return _json(sorted((await self._loaded(request)).subscriptions))

    async def create_subscription(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        position = position_from_json(body) if body not in (None, "") else LATEST
        if await self._in_partitions(request, "PUT", "", body, fine=(409,)):
            return web.Response(status=204)
        topic = await self._loaded(request)
        name = java_url_decode(request.match_info["subscription"])
        if name in topic.subscriptions:
            raise _Refused(409, "Subscription already exists for topic")
        await topic.create_subscription(name, position)
        return web.Response(status=204)

    async def delete_subscription(self, request: web.Request) -> web.Response:
        force = request.query.get("force") == "true"
        if await self._in_partitions(request, "DELETE", f"?force={str(force).lower()}"):
            return web.Response(status=204)
        topic = await self._loaded(request)
        subscription = self._subscription(request, topic)
        await topic.delete_subscription(subscription.name, force=force)
        return web.Response(status=204)

    async def skip_all(self, request: web.Request) -> web.Response:
        if not await self._in_partitions(request, "POST", "/skip_all"):
            await self._seek(request, LATEST)
        return web.Response(status=204)

    async def reset_to_position(self, request: web.Request) -> web.Response:
        position = position_from_json(await self._body(request))
        name = self._topic_name(request)
        if await self._partition_count(name):
            raise _Refused(405, f"{name} is partitioned: a position belongs to one partition, name that")
        await self._seek(request, position)
        return web.Response(status=204)

    async def reset_to_time(self, request: web.Request) -> web.Response:
        time_ms = _milliseconds(request)
        if not await self._in_partitions(request, "POST", f"/resetcursor/{time_ms}"):
            topic = await self._loaded(request)
            self._subscription(request, topic)
            await self._seek(request, await topic.position_at_ms(time_ms))
        return web.Response(status=204)

    async def _in_partitions(
        self, request: web.Request, method: str, rest: str, body: Any = None, *, fine: tuple[int, ...] = (404,)
    ) -> bool:
        """Do to a subscription of every partition what is asked of a partitioned topic; False for one that is not.

        Partitions where there is nothing to do (they answer one of *fine*) do not matter, unless all are like that.
        """
        name = self._topic_name(request)
        count = await self._partition_count(name)
        if not count:
            return False
        subscription = java_url_decode(request.match_info["subscription"])
        suffix = f"/subscription/{quote(quote_plus(subscription), safe='')}{rest}"
        if not await self._for_partitions(method, name, count, suffix, body, fine=fine):
            reason = "does not exist" if fine == (404,) else "exists already"
            raise _Refused(fine[0], f"Subscription {subscription} {reason} in all partitions of {name}")
        return True

    @staticmethod
    def _subscription(request: web.Request, topic: Topic) -> Subscription:
        name = java_url_decode(request.match_info["subscription"])
        found = topic.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic.name}")
        return found

    async def _seek(self, request: web.Request, position: Position) -> None:
        topic = await self._loaded(request)
        await topic.seek(self._subscription(request, topic), position)

    # ----------------------------------------------------------------------------- schemas, lookup

    @property
    def _registry(self) -> Any:
        return self._broker.schemas

    async def get_schema(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        version = request.match_info.get("version")
        if version is not None and not (version.isascii() and version.isdigit()):
            raise _Refused(404, f"{version} is not a version")
        found = await self._registry.get(name.schema_id, None if version is None else int(version))
        if found is None:
            raise _Refused(404, "Schema not found")
        return _json(schema_json(found))

    async def get_schemas(self, request: web.Request) -> web.Response:
        found = await self._registry.versions(self._topic_name(request).schema_id)
        if not found:
            raise _Refused(404, "Schema not found")
        return _json({"getSchemaResponses": [schema_json(one) for one in found]})

    async def _posted_schema(self, request: web.Request) -> Schema:
        """Raises _Refused (422)."""
        try:
            schema = schema_from_json(await self._body(request))
            await apart(check_valid, schema)
        except (BadJson, RegistryRefused) as error:
            raise _Refused(422, f"Invalid schema definition data: {error}") from None
        return schema

    async def _strategy(self, name: TopicName) -> Strategy:
        policies = await self._broker.namespace(name.namespace)
        return Strategy(policies.schema_strategy or self._broker.config.schema_strategy)

    async def post_schema(self, request: web.Request) -> web.Response:
        name, schema = self._topic_name(request), await self._posted_schema(request)
        try:
            version = await self._registry.put_if_absent(name.schema_id, schema, await self._strategy(name))
        except RegistryRefused as error:
            raise _Refused(409, str(error)) from error
        return _json({"version": {"version": version}})

    async def check_schema(self, request: web.Request) -> web.Response:
        name, schema = self._topic_name(request), await self._posted_schema(request)
        strategy = await self._strategy(name)
        try:
            await self._registry.check(name.schema_id, schema, strategy)
            compatible = True
        except RegistryRefused:
            compatible = False
        answer = {"schemaCompatibilityStrategy": strategy.value, "compatibility": compatible}
        return _json(answer, status=202)

    async def schema_version(self, request: web.Request) -> web.Response:
        name, schema = self._topic_name(request), await self._posted_schema(request)
        for found in await self._registry.versions(name.schema_id):
            if found.schema.type == schema.type and found.schema.data == schema.data:
                return _json({"version": found.version})
        raise _Refused(404, "Schema not found")

    async def delete_schema(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        version = await self._registry.delete(name.schema_id, force=request.query.get("force") == "true")
        if version is None:
            raise _Refused(404, "Schema not found")
        return _json({"version": version})

    async def lookup(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        listener = request.query.get("listenerName", "") or request.headers.get("X-Pulsar-ListenerName", "")
        await self._broker.namespace(name.namespace)
        located = await self._ownership.locate(name, authoritative=request.query.get("authoritative") == "true")
        address = self._broker.address if located.here else located.broker
        assert address is not None, "a topic that is not here is somewhere else"
        if located.redirect and not located.here:
            flag = "true" if located.authoritative else "false"
            raise web.HTTPTemporaryRedirect(f"{address.http_url}{request.rel_url.raw_path}?authoritative={flag}")
        plain, tls = address.service_url, address.service_url_tls
        if listener:
            if listener not in address.listeners:
                raise _Refused(503, f"the broker do not have {listener} listener")
            plain, tls = address.listeners[listener]
        answer = {
            "brokerUrl": plain,
            "brokerUrlTls": tls or None,
            "httpUrl": address.http_url,
            "httpUrlTls": address.https_url or None,
            "nativeUrl": plain,
            "brokerUrlSsl": tls,
        }
        return _json({name: url for name, url in answer.items() if url is not None})

    async def lookup_bundle(self, request: web.Request) -> web.Response:
        name = self._topic_name(request)
        policies = await self._broker.namespace(name.namespace)
        return _word(policies.bundles.range_of(name))

    # ------------------------------------------------------------------------------------- records

    @staticmethod
    async def _body(request: web.Request) -> Any:
        """The JSON of a request, None for none."""
        try:
            text = await request.text()
            return parse_json(text) if text.strip() else None
        except (ValueError, LookupError) as error:
            raise _Refused(400, f"the body is not JSON: {error}") from None

    async def _json(self, path: str, what: str) -> dict[str, Any]:
        node = await self._store.get(path)
        if node is None:
            raise _Refused(404, f"{what} does not exist")
        return _record(node)

    async def _create(self, path: str, value: Any, exists: str) -> None:
        node = await self._store.get(path)
        if node is not None and node.value:
            raise _Refused(409, exists)
        try:
            await self._store.put(path, to_json(value), NO_NODE if node is None else node.version)
        except VersionConflict:
            raise _Refused(409, exists) from None

    async def _change(self, path: str, what: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Compare-and-set a record; members that are not ours stay."""
        for _ in range(10):
            node = await self._store.get(path)
            if node is None:
                raise _Refused(404, f"{what} does not exist")
            try:
                await self._store.put(path, to_json(change(_record(node))), node.version)
                return
            except VersionConflict:
                continue
        raise _Refused(409, "Concurrent modification")

    async def _delete(self, path: str, what: str) -> None:
        try:
            await self._store.delete(path)
        except NoNode:
            raise _Refused(404, f"{what} does not exist") from None
        except NotEmpty:
            raise _Refused(409, f"{what} is not empty") from None


class _Probe:
    """Tells each append of the health check what became of it; several checks may be under way."""

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence["asyncio.Future[Position]"]) -> None:
        for entry_id, done in enumerate(contexts, first_entry_id):
            if not done.done():
                done.set_result(Position(ledger_id, entry_id))

    def on_append_failed(self, contexts: Sequence["asyncio.Future[Position]"], error: ManagedLedgerError) -> None:
        for done in contexts:
            if not done.done():
                done.set_exception(error)

    def on_closed(self, error: ManagedLedgerError) -> None:
        """Pending appends are told one by one; the next check opens the ledger again."""


def _check_policy(name: str, value: Any) -> None:
    """Values that Apache refuses, too, and those that nothing could be done with."""
    if not _is_kind(value, POLICIES[name][2]):
        raise _Refused(412, f"{name} takes JSON of another kind, not {json.dumps(value)[:200]}")
    if name == "retention":
        minutes, mbytes = value.get("retentionTimeInMinutes"), value.get("retentionSizeInMB")
        if not isinstance(minutes, int) or not isinstance(mbytes, int) or minutes < -1 or mbytes < -1:
            raise _Refused(412, "Invalid retention policy: numbers of at least -1 are needed")
        if (minutes == 0) != (mbytes == 0):
            raise _Refused(412, "Invalid retention policy: only one of time and size is 0, nothing would be kept")
    elif name == "persistence":
        sizes = [value.get(f"bookkeeper{part}", 0) for part in ("Ensemble", "WriteQuorum", "AckQuorum")]
        if not all(type(size) is int for size in sizes) or not sizes[0] >= sizes[1] >= sizes[2] >= 0:
            raise _Refused(400, "Bookkeeper Ensemble ({}) >= WriteQuorum ({}) >= AckQuorum ({})".format(*sizes))
        if sizes[0] > ENSEMBLE_SIZE_MAX:
            raise _Refused(412, f"Bookkeeper Ensemble ({sizes[0]}) must be at most {ENSEMBLE_SIZE_MAX} bookies")
        rate = value.get("managedLedgerMaxMarkDeleteRate", 0)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or rate < 0:
            raise _Refused(412, "managedLedgerMaxMarkDeleteRate must be 0 or more")
    elif name == "autoTopicCreation":
        count = value.get("defaultNumPartitions") or 1
        if type(count) is not int or not 1 <= count <= PARTITIONS_MAX:
            raise _Refused(412, f"defaultNumPartitions must be 1 to {PARTITIONS_MAX}")
    elif name == "schemaCompatibilityStrategy":
        try:
            Strategy(value)
        except ValueError:
            raise _Refused(412, f"unknown strategy {value}") from None
    elif isinstance(value, int) and not isinstance(value, bool) and value < 0:
        raise _Refused(412, f"{name} must be 0 or more")


def _names(record: dict[str, Any], member: str) -> list[Any]:
    """A list in a record that somebody else may have written."""
    found = record.get(member)
    return found if isinstance(found, list) else []


def _is_kind(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Refused(400, "a JSON object is needed")
    return value


def _record(node: Node) -> dict[str, Any]:
    """The JSON object in a node. Raises Corruption."""
    try:
        found = parse_json(node.value) if node.value else {}
    except ValueError as error:
        raise Corruption(f"{node.path} does not hold JSON: {error}") from None
    if not isinstance(found, dict):
        raise Corruption(f"{node.path} does not hold a JSON object")
    return found


def _check_readable(policies: dict[str, Any]) -> None:
    """Nothing may be stored that the brokers could not read afterwards."""
    try:
        parse_policies(to_json(policies), "policies")
    except Corruption as error:
        raise _Refused(412, f"Invalid policies: {error}") from None


def _bundles(given: Any, default: int) -> Bundles:
    """How a new namespace is cut: by boundaries, or into so many equal parts."""
    given = _dict(given)
    boundaries = given.get("boundaries")
    if boundaries:
        try:
            return Bundles.from_texts(boundaries)
        except (AssertionError, ValueError, TypeError) as error:
            raise _Refused(412, f"Invalid bundle boundaries: {error}") from None
    count = given.get("numBundles") or default
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= BUNDLES_MAX:
        raise _Refused(412, f"Invalid number of bundles: it must be between 1 and {BUNDLES_MAX}")
    return Bundles.equal(count)


def _refuse_force(request: web.Request) -> None:
    if request.query.get("force") == "true":
        raise _Refused(405, "This broker does not delete tenants and namespaces with what is in them; empty it first")


def _setting_text(value: Any) -> str:
    """A setting as it stands in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list | frozenset):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _milliseconds(request: web.Request) -> int:
    return int(request.match_info["timestamp"])
