"""The admin API over HTTP, with Apache's paths, status codes and JSON. (Recorded: tests/vectors/http.)

There is a module for each subject, which knows paths, parameters, statuses and bodies. Decisions and writes are made
in `broker/tenancy/changes.py`, `broker/tenancy/partitions.py`, `broker/broker.py`, the topics and `RackRecords`.
Paths that Apache's brokers serve and this one does not are refused by name (`refusals.py`). The page for people
stands beside it (`page`).
"""

import socket
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from broker.admin.authentication import authenticating
from broker.admin.cluster.bookies import BookiesApi
from broker.admin.cluster.broker_stats import BrokerStatsApi
from broker.admin.cluster.brokers import BrokersApi
from broker.admin.cluster.clusters import ClustersApi
from broker.admin.cluster.load import LoadApi
from broker.admin.cluster.lookups import LookupsApi
from broker.admin.forwarded import ForwardedConnections
from broker.admin.http import answer_errors, check_request, compress, refusal
from broker.admin.limiting import rate_limit_middleware
from broker.admin.namespaces.bundles import BundlesApi
from broker.admin.namespaces.clear_backlog import BacklogApi
from broker.admin.namespaces.namespace_policies import NamespacePoliciesApi
from broker.admin.namespaces.namespaces import NamespacesApi
from broker.admin.namespaces.resource_groups import ResourceGroupsApi
from broker.admin.namespaces.tenants import TenantsApi
from broker.admin.numbers.metrics import broker_samples
from broker.admin.numbers.service_metrics import load_samples
from broker.admin.owners import Owners
from broker.admin.page.calls import PageApi
from broker.admin.page.facts import Storage
from broker.admin.refusals import Refusals
from broker.admin.rights import Operations, Routes, authorization_middleware
from broker.admin.topics.messages import MessagesApi
from broker.admin.topics.non_persistent import NonPersistentTopicsApi
from broker.admin.topics.partitioned_topics import PartitionedTopicsApi
from broker.admin.topics.schemas import SchemasApi
from broker.admin.topics.subscriptions import SubscriptionsApi
from broker.admin.topics.topic_policies import TopicPoliciesApi
from broker.admin.topics.topics import TopicsApi
from broker.broker import Broker
from broker.health import HealthCheck
from broker.ownership.ownership import BundleOwnership
from broker.transfer.bundles import BundleWork
from broker.transfer.load_manager import LoadManager
from magnetar_core.runtime.http.hosts import HostRules, is_loopback, name_in
from magnetar_core.runtime.http.server import HttpServer
from magnetar_core.runtime.observe import Metrics
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.security.tls.port import TlsPort

# Policies are kilobytes; a schema may be larger.
BODY_BYTES_MAX: Final = 4 * 1024 * 1024

# Connections that wait for their TLS handshake to begin; as many as the HTTP library lets wait without TLS.
BACKLOG: Final = 128


class AdminServer:
    """The admin API of one broker."""

    def __init__(
        self, broker: Broker, ownership: BundleOwnership, *, version: str, storage: Storage | None = None
    ) -> None:
        self._broker = broker
        self.metrics = Metrics()
        self.metrics.add(lambda: broker_samples(broker, ownership.owned_bundles))
        self._http: HttpServer | None = None
        self._access = broker.access
        self.operations: Operations = {}
        """What each route needs, by its handler."""
        self._tls: TlsPort | None = None
        self._forwarded: ForwardedConnections | None = None
        """Only behind a load balancer that says for whom it connects."""
        owners = Owners(broker, ownership)
        self.bundle_work = BundleWork(broker, ownership, owners)
        self.load = LoadManager(broker, ownership, owners, self.bundle_work)
        self.metrics.add(lambda: load_samples(broker, self.load))
        bundles = BundlesApi(broker, ownership, owners, self.bundle_work)

        namespaces = NamespacesApi(broker, bundles, owners)

        def broker_id() -> str:
            return ownership.broker_id  # known once the ownership has started

        health = HealthCheck(broker.ledgers, broker_id, broker.now_ms)
        self._page = PageApi(broker, ownership, owners, version, storage)
        self._tasks = Tasks("admin")
        self._non_persistent = NonPersistentTopicsApi(broker, ownership, owners)
        self._subjects = (
            BrokersApi(broker, ownership, health, self.metrics, version),
            BookiesApi(broker),
            LoadApi(broker, ownership, self.load),
            ClustersApi(broker, ownership),
            ResourceGroupsApi(broker.tenancy),
            TenantsApi(broker.config, broker.tenancy, namespaces),
            BacklogApi(broker, ownership, owners),  # before that of namespaces, which takes any name for a policy
            bundles,
            namespaces,
            NamespacePoliciesApi(broker.tenancy),
            TopicsApi(broker, owners, broker_id),
            PartitionedTopicsApi(broker, owners),
            TopicPoliciesApi(broker, owners),
            self._non_persistent,
            SubscriptionsApi(broker.partitioned, owners, broker.now_ms),
            MessagesApi(broker, owners),
            BrokerStatsApi(broker),
            SchemasApi(broker),
            LookupsApi(broker),
            self._page,
        )

    async def start(self, listening: socket.socket | None, secure: socket.socket | None = None) -> None:
        """Serve on bound sockets; *secure* is for HTTPS."""
        await self.load.start()
        self._tasks.spawn(self._page.remember(), "the last hour")
        config = self._broker.config
        self._http = HttpServer(
            self.application(),
            header_bytes_max=config.http_header_bytes,
            connections_max=config.http_connections_max,
            idle_s=config.http_idle_ms / 1000,
            hosts=self.hosts(),
            refusal=lambda _, status, text: refusal(status, text),
        )
        admit = await self._http.new_connection()
        before = None
        if config.web_proxy_protocol:
            self._forwarded = ForwardedConnections(admit, self._broker.clock)
            before = self._forwarded.before_tls
            if listening is not None:
                await self._forwarded.serve(listening, BACKLOG)
        elif listening is not None:
            await self._http.start(listening)
        if secure is not None:
            assert self._broker.web_certificates is not None, "HTTPS needs certificates"
            self._tls = TlsPort(self._broker.web_certificates, admit, self._broker.clock, before=before)
            self._tls.serve(secure, BACKLOG)

    def hosts(self) -> HostRules:
        """Under which names calls are answered where nobody is asked for a token."""
        config = self._broker.config
        address = self._broker.address
        urls = [
            address.service_url,
            address.service_url_tls,
            *(url for pair in address.listeners.values() for url in pair),
        ]
        advertised = {name_in(urlsplit(url).netloc) for url in urls}
        return HostRules(
            {*config.http_names, *advertised, config.advertised_host, socket.gethostname()},
            is_local=is_loopback(config.bind_address),
            asks_callers=self._broker.doors is not None and not config.anonymous_role,
        )

    def application(self) -> web.Application:
        """The routes, and what every request goes through before its handler."""
        config = self._broker.config
        middlewares: list[Any] = [
            compress,
            answer_errors,
            *([] if self._broker.doors is None else [authenticating(self._broker.doors, config)]),
            check_request,
            authorization_middleware(self._access, self.operations, self._broker.arrivals),
        ]
        if config.http_requests_limited:
            middlewares.insert(0, rate_limit_middleware(config.http_requests_per_s, self._broker.clock))
        app = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
        routes = Routes(app.router, self.operations)
        refusals = Refusals()
        refusals.add_routes(routes)
        for subject in self._subjects:
            subject.add_routes(routes)
        # Added last: the first route that matches is taken.
        self._non_persistent.add_refusals(routes)
        refusals.add_last(routes)
        return app

    async def stop(self) -> None:
        await self._tasks.cancel()
        await self.load.stop()
        if self._tls is not None:
            await self._tls.close()
        if self._forwarded is not None:
            await self._forwarded.close()
        if self._http is not None:
            await self._http.stop()
