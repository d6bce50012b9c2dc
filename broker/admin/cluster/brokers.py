"""`/admin/v2/brokers`, `/metrics`, `/status.html`: the brokers of the cluster, their settings and health."""

import dataclasses
from typing import Any

from aiohttp import web

from broker.admin.http import ADMIN, Refused, done, json_answer, word_answer
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.health import HealthCheck
from broker.ownership.ownership import BundleOwnership
from broker.security.authorization import Operation
from broker.settings.dynamic import DYNAMIC
from magnetar_core.runtime.config import shown_value
from magnetar_core.runtime.observe import Metrics


class BrokersApi:
    """The brokers of the cluster; settings, health and metrics of this one."""

    def __init__(
        self, broker: Broker, ownership: BundleOwnership, health: HealthCheck, metrics: Metrics, version: str
    ) -> None:
        self._broker = broker
        self._config = broker.config
        self._ownership = ownership
        self._health = health
        self._metrics = metrics
        self._version = version

    def add_routes(self, routes: Routes) -> None:
        brokers = ADMIN + "/brokers"
        routes.get("/metrics", self.metrics, Operation.METRICS)
        routes.get("/metrics/", self.metrics, Operation.METRICS)
        routes.get("/status.html", self.ready, Operation.PROBE)
        routes.get(brokers, self.list, Operation.BROKER)
        routes.get(brokers + "/health", self.health, Operation.BROKER)
        routes.get(brokers + "/ready", self.ready, Operation.ASK_BROKER)
        routes.get(brokers + "/version", self.version, Operation.ASK_BROKER)
        routes.get(brokers + "/leaderBroker", self.leader, Operation.BROKER)
        routes.get(brokers + "/internal-configuration", self.internal_configuration, Operation.BROKER)
        routes.get(brokers + "/configuration", self.setting_names, Operation.BROKER)
        routes.get(brokers + "/configuration/runtime", self.settings, Operation.BROKER)
        routes.get(brokers + "/configuration/values", self.changed_settings, Operation.BROKER)
        routes.post(brokers + "/configuration/{key}/{value}", self.change_setting, Operation.BROKER)
        routes.delete(brokers + "/configuration/{key}", self.remove_setting, Operation.BROKER)
        routes.get(brokers + "/backlog-quota-check", self.check_quotas, Operation.BROKER)
        routes.get(brokers + "/{cluster}", self.list, Operation.BROKER)
        routes.get(brokers + "/{cluster}/{broker}/ownedNamespaces", self.owned_namespaces, Operation.BROKER)

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=await self._metrics.exposition_in_turns(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def ready(self, request: web.Request) -> web.Response:
        return word_answer("ok")

    async def version(self, request: web.Request) -> web.Response:
        return word_answer(self._version)

    async def list(self, request: web.Request) -> web.Response:
        cluster = request.match_info.get("cluster", self._config.cluster_name)
        if cluster != self._config.cluster_name:
            raise Refused(404, f"Cluster {cluster} is not that of this broker ({self._config.cluster_name})")
        return json_answer(sorted(await self._ownership.brokers()))

    async def leader(self, request: web.Request) -> web.Response:
        broker_id, url = await self._ownership.members.leader()
        if not broker_id:
            raise Refused(404, "Couldn't find leader broker")
        return json_answer({"brokerId": broker_id, "serviceUrl": url})

    async def internal_configuration(self, request: web.Request) -> web.Response:
        url = self._config.metadata_store_url
        return json_answer(
            {
                "zookeeperServers": url,
                "configurationStoreServers": url,
                "metadataStoreUrl": url,
                "configurationMetadataStoreUrl": url,
                "ledgersRootPath": "/ledgers",
            }
        )

    async def setting_names(self, request: web.Request) -> web.Response:
        """The settings that may be changed while the broker runs."""
        return json_answer(sorted(DYNAMIC))

    async def change_setting(self, request: web.Request) -> web.Response:
        await self._broker.settings.set(request.match_info["key"], request.match_info["value"])
        return web.Response(status=200)

    async def remove_setting(self, request: web.Request) -> web.Response:
        await self._broker.settings.remove(request.match_info["key"])
        return web.Response(status=200)

    async def check_quotas(self, request: web.Request) -> web.Response:
        """Compare the backlogs of all topics of this broker with their quotas, now."""
        for topic in list(self._broker.topics.values()):
            await topic.keep_quotas()
        return done()

    async def settings(self, request: web.Request) -> web.Response:
        """Every setting with its present value, as text; secrets are hidden."""
        fields = [field for field in dataclasses.fields(self._config) if "name" in field.metadata]
        values = {field.metadata["name"]: shown_value(field, getattr(self._config, field.name)) for field in fields}
        return json_answer({name: _text(value) for name, value in values.items()})

    async def changed_settings(self, request: web.Request) -> web.Response:
        """Settings that were changed while the broker runs."""
        return json_answer(dict(self._broker.settings.values))

    async def owned_namespaces(self, request: web.Request) -> web.Response:
        if request.match_info["broker"] != self._ownership.broker_id:
            raise Refused(404, f"ask broker {request.match_info['broker']} itself")
        shown = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return json_answer(dict.fromkeys(self._ownership.owned_bundles, shown))

    async def health(self, request: web.Request) -> web.Response:
        await self._health.run()
        return word_answer("ok")


def _text(value: Any) -> str:
    """The value of a setting as it is written in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list | frozenset):
        return ",".join(map(str, value))
    return "" if value is None else str(value)
