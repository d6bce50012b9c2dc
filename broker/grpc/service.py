"""The gRPC port of a broker: the simple topic API (`magnetar.topics.v1`), health and reflection.

It serves the same topics as the binary port, with the same dispatch, permits, redelivery, fencing and deduplication.
Nothing of gRPC is loaded unless the port is configured.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from broker.admin.numbers.stats import StatsOptions, topic_stats
from broker.broker import Broker
from broker.errors import BrokerError, NotAllowed, NotReady
from broker.grpc.callers import authenticate, caller_of, is_secure, source_of
from broker.grpc.consume import Consumers, last_id
from broker.grpc.publish import Publisher
from broker.grpc.publishing.grouping import GroupLimits
from broker.grpc.requests import STREAMS_OF_ROLE_MAX, Requests
from broker.grpc.secure_port import server_credentials
from broker.grpc.status import Refused, Status, refusal
from broker.grpc.topic_watches import DEFAULT_NAMESPACE, TopicWatches
from broker.names import parse_namespace, parse_topic
from broker.ownership.rules import GRPC_LISTENER
from broker.records.json_records import RecordExists, RecordInUse
from broker.security.authorization import Need, Operation, about_namespace, about_topic
from broker.security.doors import Doors
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.process.descriptors import DESCRIPTORS
from magnetar_core.runtime.types import KIB, MIB
from magnetar_core.topics import topics_pb2 as api

log = logging.getLogger(__name__)

SERVICE: Final = "magnetar.topics.v1.Topics"

# Bytes that a client may send ahead on a stream that we do not read.
STREAM_WINDOW_BYTES: Final = 256 * KIB

# The largest request: a frame of many messages, or of one message of the largest size.
REQUEST_BYTES_MIN: Final = 8 * MIB
REQUEST_PADDING_BYTES: Final = 1 * MIB

# Calls of one connection: the streams that one client may have, and those that are answered soon beside them.
STREAMS_PER_CONNECTION_MAX: Final = STREAMS_OF_ROLE_MAX + 100

# Of a name that is asked for by health: it is kept while somebody watches it.
SERVICE_CHARS_MAX: Final = 256

# When the broker stops: how long answers to what was sent may take, and after that the end of the calls.
STOP_GRACE_S: Final = 1.0

Handler = Callable[[Any], Awaitable[Any]]


class GrpcServer:
    """Serves one broker's topics over gRPC."""

    def __init__(self, broker: Broker, new_server: Callable[..., Any] | None = None) -> None:
        """*new_server* makes the server, as `grpc.aio.server`, which is None."""
        config = broker.config
        self._broker = broker
        self._new_server = grpc.aio.server if new_server is None else new_server
        self._requests = Requests()
        bytes_max = min(config.grpc_group_bytes_max, config.max_message_bytes)
        limits = GroupLimits(config.grpc_group_messages_max, bytes_max, config.grpc_group_delay_ms)
        self._publisher = Publisher(broker, self._requests, limits)
        self._consumers = Consumers(broker, self._requests)
        self._watches = TopicWatches(broker, self._requests)
        broker.on_permissions_changed.append(self._publisher.recheck)
        self._server: Any = None
        self._health: Any = None
        self.port = 0
        self.port_tls = 0

    async def start(self, host: str, port: int | None, port_tls: int | None = None) -> int:
        """Open the ports (0: any free one); returns the number of the first. *port_tls* is for TLS. Raises OSError."""
        self._server = self._new_server(
            options=[
                (
                    "grpc.max_receive_message_length",
                    max(REQUEST_BYTES_MIN, self._broker.config.max_message_bytes + REQUEST_PADDING_BYTES),
                ),
                ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
                # gRPC accepts by itself: it gets half of what connections may have, and the ports share it.
                ("grpc.max_allowed_incoming_connections", DESCRIPTORS.for_connections // 4),
                # Without these two the library buffers as much as the network can carry while a stream is not read.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", STREAM_WINDOW_BYTES),
                # A peer that vanished without a word is noticed as on the binary port.
                ("grpc.keepalive_time_ms", self._broker.config.keep_alive_s * 1000),
                ("grpc.keepalive_timeout_ms", self._broker.config.keep_alive_s * 1000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ]
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self._health = health.aio.HealthServicer()
        self._server.add_generic_rpc_handlers((self._health_handlers(),))
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflected = _Reflection(names, self._broker)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, self._server)
        if port is not None:
            self.port = _opened(host, port, self._server.add_insecure_port)
        if port_tls is not None:
            credentials = server_credentials(self._broker.config, self._broker.clock)

            def add(address: str) -> Any:
                return self._server.add_secure_port(address, credentials)

            self.port_tls = _opened(host, port_tls, add)
        await self._server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return self.port or self.port_tls

    async def stop(self) -> None:
        """Report over the health service that the broker stops, end all calls, close the port."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            self._consumers.end()
            self._watches.end()
            await self._publisher.end(STOP_GRACE_S)
            await self._server.stop(STOP_GRACE_S)
            self._broker.on_permissions_changed.remove(self._publisher.recheck)
            self._server = None

    def _handlers(self) -> Any:
        """The calls of the service: `stream` for those that go on, `unary` for one request with one answer."""

        def stream(serve: Callable[[Any], Awaitable[None]], request: Any) -> Any:
            async def handle(_: Any, context: Any) -> None:
                await _guard(serve, context, context, self._broker.doors, is_stream=True)

            return grpc.stream_stream_rpc_method_handler(
                handle, request_deserializer=request.FromString, response_serializer=_serialize
            )

        def unary(serve: Handler, request: Any, operation: Operation) -> Any:
            async def read(context: Any) -> Any:
                self._broker.arrivals.work_for(source_of(context))
                return await self._requests.of_role(context, source_of(context))

            async def ask_and_serve(message: Any, context: Any) -> Any:
                async with self._broker.arrivals.looking_up():
                    await self._broker.access.check(caller_of(context), _need(operation, message))
                    return await serve(message)

            async def handle(_: Any, context: Any) -> Any:
                message = await _guard(read, context, context, self._broker.doors)
                return await _guard(lambda argument: ask_and_serve(argument, context), message, context)

            return grpc.stream_unary_rpc_method_handler(
                handle, request_deserializer=request.FromString, response_serializer=_serialize
            )

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Publish": stream(self._publisher.serve, api.PublishRequest),
                "Consume": stream(self._consumers.serve, api.ConsumeRequest),
                "WatchTopics": stream(self._watches.serve, api.WatchTopicsRequest),
                "Lookup": unary(self._lookup, api.LookupRequest, Operation.LOOKUP),
                "GetTopic": unary(self._get_topic, api.GetTopicRequest, Operation.LOOKUP),
                "GetLastMessageId": unary(self._last_message_id, api.GetLastMessageIdRequest, Operation.PEEK_MESSAGES),
                "CreateTopic": unary(self._create_topic, api.CreateTopicRequest, Operation.CREATE_TOPIC),
                "DeleteTopic": unary(self._delete_topic, api.DeleteTopicRequest, Operation.DELETE_TOPIC),
                "ListTopics": unary(self._list_topics, api.ListTopicsRequest, Operation.GET_TOPICS),
                "ListBrokers": unary(self._list_brokers, api.ListBrokersRequest, Operation.ASK_BROKER),
                "GetTopicStats": unary(self._stats, api.GetTopicStatsRequest, Operation.GET_STATS),
                "GetSchema": unary(self._schema, api.GetSchemaRequest, Operation.GET_SCHEMA),
            },
        )

    def _health_handlers(self) -> Any:
        request, answer = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse

        async def read(context: Any) -> Any:
            message = await self._requests.of_stranger(context)
            if len(message.service) > SERVICE_CHARS_MAX:
                raise Refused(Status.INVALID_ARGUMENT, f"names of services have {SERVICE_CHARS_MAX} characters at most")
            return message

        async def check(_: Any, context: Any) -> Any:
            return await self._health.Check(await _guard(read, context, context), context)

        async def watch(_: Any, context: Any) -> None:
            await self._health.Watch(await _guard(read, context, context), context)

        return grpc.method_handlers_generic_handler(
            health.SERVICE_NAME,
            {
                "Check": grpc.stream_unary_rpc_method_handler(check, request.FromString, answer.SerializeToString),
                "Watch": grpc.stream_stream_rpc_method_handler(watch, request.FromString, answer.SerializeToString),
            },
        )

    # -------------------------------------------------------------------------------- topics

    async def _lookup(self, request: api.LookupRequest) -> api.LookupResponse:
        name = parse_topic(request.topic)
        try:
            answer = await self._broker.lookup(name, authoritative=request.authoritative, listener=GRPC_LISTENER)
        except NotReady as error:
            if GRPC_LISTENER not in str(error):
                raise
            text = f"{name} is served by a broker without a gRPC port; set grpcServicePort there"
            raise Refused(Status.FAILED_PRECONDITION, text) from None
        url = answer.service_url_tls if is_secure() else answer.service_url
        if not url:
            kind = "grpcServicePortTls" if is_secure() else "grpcServicePort"
            text = f"{name} is served by a broker that lacks the kind of gRPC port you use; set {kind} there"
            raise Refused(Status.FAILED_PRECONDITION, text)
        return api.LookupResponse(
            address=url.partition("://")[2],
            ask_there=answer.is_redirect,
            authoritative=answer.authoritative,
        )

    async def _get_topic(self, request: api.GetTopicRequest) -> api.GetTopicResponse:
        name = parse_topic(request.topic)
        return api.GetTopicResponse(
            topic=name.full, partitions=await self._broker.partitions(name, create=request.create)
        )

    async def _last_message_id(self, request: api.GetLastMessageIdRequest) -> api.GetLastMessageIdResponse:
        topic = await self._broker.opening.persistent(parse_topic(request.topic), create=False)
        last = await last_id(topic, read_compacted=request.read_compacted)
        return api.GetLastMessageIdResponse(id=last, partitions=self._broker.partition_counts.known(topic.name))

    async def _create_topic(self, request: api.CreateTopicRequest) -> api.CreateTopicResponse:
        name = parse_topic(request.topic)
        broker = self._broker
        partitions_max = broker.config.partitions_max
        if not 0 <= request.partitions <= partitions_max:
            problem = f"{name}: partitions are 0 to {partitions_max}, not {request.partitions}"
            raise Refused(Status.INVALID_ARGUMENT, problem)
        await broker.namespace(name.namespace)
        exists = Refused(Status.ALREADY_EXISTS, f"{name} exists; use it, delete it, or take another name")
        if request.partitions:
            await broker.creation.check_new(name, request.partitions)
            try:
                await broker.partitioned.create(name, request.partitions)
            except RecordExists:
                raise exists from None
            return api.CreateTopicResponse()
        if not name.is_persistent:
            raise NotAllowed(f"{name} is non-persistent; only the binary protocol serves such topics", way_out="")
        await broker.creation.check_partition(name)
        if await broker.ledgers.exists(name.managed_ledger_name) or await broker.partitioned.count(name):
            raise exists
        await broker.opening.create_topic(name)
        return api.CreateTopicResponse()

    async def _delete_topic(self, request: api.DeleteTopicRequest) -> api.DeleteTopicResponse:
        name = parse_topic(request.topic)
        broker = self._broker
        if await broker.partitioned.count(name):
            try:
                await broker.deleting.delete_partitioned(name)
            except RecordInUse as error:
                raise Refused(Status.FAILED_PRECONDITION, str(error)) from None
            return api.DeleteTopicResponse()
        await broker.deleting.delete_topic(name, force=request.force)
        return api.DeleteTopicResponse()

    async def _list_topics(self, request: api.ListTopicsRequest) -> api.ListTopicsResponse:
        namespace = request.namespace or DEFAULT_NAMESPACE
        await self._broker.namespace(namespace)
        topics = await self._broker.topics_of_namespace(namespace, persistent=True, non_persistent=False)
        return api.ListTopicsResponse(topics=topics)

    async def _list_brokers(self, request: api.ListBrokersRequest) -> api.ListBrokersResponse:
        brokers = [self._broker.address, *(await self._broker.ownership.brokers()).values()]
        pairs = (broker.listeners.get(GRPC_LISTENER, ("", "")) for broker in brokers)
        urls = (pair[1] if is_secure() else pair[0] for pair in pairs)
        return api.ListBrokersResponse(addresses=sorted({url.partition("://")[2] for url in urls if url}))

    async def _stats(self, request: api.GetTopicStatsRequest) -> api.GetTopicStatsResponse:
        topic = await self._broker.opening.persistent(parse_topic(request.topic), create=False)
        owner = self._broker.address.native_url.partition("://")[2]
        return api.GetTopicStatsResponse(json=json.dumps(await topic_stats(topic, owner, StatsOptions())))

    async def _schema(self, request: api.GetSchemaRequest) -> api.GetSchemaResponse:
        schema, version = await self._broker.get_schema(parse_topic(request.topic), request.version or None)
        properties = {item.key: item.value for item in schema.properties}
        converted = api.Schema(type=int(schema.type), data=schema.schema_data, properties=properties)
        return api.GetSchemaResponse(schema=converted, version=version)


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # the library has no types
    """Tells what services there are, to those who are authenticated. (Health is told to everybody, as load balancers
    ask for it.)"""

    def __init__(self, names: Iterable[str], broker: Broker) -> None:
        super().__init__(names)
        self._broker = broker

    async def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async def admit(_: Any) -> None:
            await self._broker.access.check(caller_of(context), Need(Operation.ASK_BROKER))

        await _guard(admit, None, context, self._broker.doors)
        async for answer in super().ServerReflectionInfo(request_iterator, context):
            yield answer


def _need(operation: Operation, request: Any) -> Need:
    """What *request* needs: it names a topic, or a namespace. Raises InvalidTopicName."""
    if isinstance(request, api.ListTopicsRequest):
        namespace = request.namespace or DEFAULT_NAMESPACE
        parse_namespace(namespace)
        return about_namespace(operation, namespace)
    if isinstance(request, api.ListBrokersRequest):
        return Need(operation)
    return about_topic(operation, parse_topic(request.topic))


def _subject(request: Any) -> str:
    """The topic or namespace that *request* names."""
    return getattr(request, "topic", "") or getattr(request, "namespace", "")


def _serialize(answer: Any) -> bytes:
    encoded: bytes = answer.SerializeToString()
    return encoded


def _opened(host: str, port: int, add: Callable[[str], Any]) -> int:
    """The number of the port that *add* opens. Raises OSError."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        opened = int(add(address))
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {address}: {error}") from None
    if not opened:
        raise OSError(f"gRPC cannot listen on {address}")
    return opened


async def _serve(serve: Handler, argument: Any, context: Any, doors: Doors | None, is_stream: bool) -> Any:
    """Serve a call of somebody who is authenticated; a stream ends when the credentials expire."""
    admitted = await authenticate(doors, context)
    if doors is None or admitted is None or admitted.identity.expires_s is None or not is_stream:
        return await serve(argument)
    try:
        async with asyncio.timeout(max(admitted.identity.expires_s - doors.now_s(), 0)) as limit:
            return await serve(argument)
    except TimeoutError:
        if not limit.expired():
            raise
        raise NotReady("the credentials of this call have expired; begin it anew with others") from None


async def _guard(
    serve: Handler, argument: Any, context: Any, doors: Doors | None = None, *, is_stream: bool = False
) -> Any:
    """Serve one call. Every error ends it with a status whose text says what to do."""
    try:
        return await _serve(serve, argument, context, doors, is_stream)
    except Refused as error:
        refused = error
    except BrokerError as error:
        refused = refusal(_subject(argument), error)
    except MetadataError as error:
        refused = refusal(_subject(argument), NotReady(str(error)))
    except (grpc.RpcError, grpc.aio.AbortError):
        raise
    except Exception as error:
        if context.cancelled() or context.done():
            raise
        log.exception("a call of %s failed", context.peer())
        refused = Refused(Status.INTERNAL, f"{type(error).__name__}: {error}; see the broker's log")
    await context.abort(refused.code, str(refused))
    return None
