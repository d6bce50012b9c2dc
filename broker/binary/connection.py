"""One client connection: its handshake, and which part takes which command. No IO.

    START ──CONNECT──▶ AUTHENTICATING ──▶ CONNECTED ──▶ CLOSED     anything else before CONNECTED, and a second CONNECT,
                       (where it is on)                             end it; how a client is admitted: `handshake`

The commands of producers are in `producers`, those of consumers in `consumers`, questions about topics in `lookups`;
what the client makes the broker hold is counted in `flow`.

Rules:

1. Frames are worked on in the order in which they came. A request that memory can answer is answered in that call; one
   that has to wait becomes one task, and its answer may overtake others (clients match them by request id).
2. All messages of one chunk for one topic are published in one call; a command between them is worked on after the
   messages before it. No command begins before the one in front of it is done, also where that takes more than a turn.
3. A command that is not known, or cannot be done here, is refused with the error that the protocol has for it.
"""

from collections.abc import Callable, Generator, Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple, Protocol

from broker.binary.admission.client_facts import ClientFacts
from broker.binary.admission.guard import AccessPort, Guard
from broker.binary.admission.handshake import Doors, Login, facts_of
from broker.binary.answers import Answers, error_frame
from broker.binary.consumers import ConnectionConsumers, ConsumerBroker
from broker.binary.flow import OUTBOX_HIGH_BYTES, ClientFlow, FlowPort
from broker.binary.lookups import LookupBroker, Lookups
from broker.binary.producers import ConnectionProducers, ProducerBroker
from broker.binary.watches import ConnectionWatches, WatchBroker
from broker.errors import BrokerError
from broker.settings.config import BrokerConfig
from broker.topic.clients.properties import KeptBytes
from broker.topic.ports import Outbox, Spawn
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE, command, parse_frame, parse_send
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.security.caller import TRUSTED, Caller
from magnetar_core.topics.topic_name import TopicName

# What we say we are: clients log it, and admin tools compare it.
SERVER_VERSION: Final = "Pulsar Server4.0.8"
PROTOCOL_VERSION: Final = 21
BROKER_METADATA_VERSION: Final = 18

_T: Final = wire.BaseCommand

# The request id of an error that belongs to no request.
NO_REQUEST: Final = 2**64 - 1

PING: Final = command(_T.PING)


class State(Enum):
    """Where the handshake is."""

    START = auto()
    AUTHENTICATING = auto()
    CONNECTED = auto()
    CLOSED = auto()


class LookupAnswer(NamedTuple):
    """Where a client has to go."""

    service_url: str
    service_url_tls: str
    is_redirect: bool
    authoritative: bool


class BrokerPort(FlowPort, ProducerBroker, ConsumerBroker, LookupBroker, WatchBroker, Protocol):
    """The broker, as a connection uses it (`broker.broker.Broker`). All coroutines raise BrokerError."""

    config: BrokerConfig
    kept_properties: KeptBytes

    @property
    def access(self) -> AccessPort: ...

    @property
    def doors(self) -> Doors | None:
        """Who authenticates clients; None: every client is trusted."""
        ...

    async def lookup(self, topic: TopicName, *, authoritative: bool, listener: str) -> LookupAnswer: ...


class Connection:
    """The broker's side of one connection."""

    def __init__(
        self,
        broker: BrokerPort,
        outbox: Outbox,
        spawn: Spawn,
        address: str,
        *,
        common_name: str | None = None,
        is_trusted: bool = False,
    ) -> None:
        """*common_name* is that of the certificate which the client showed over TLS; *is_trusted*: it need show
        nothing, since it is the broker itself."""
        self.address = address
        self.state = State.START
        self.flow = ClientFlow(broker, outbox)
        self._config = broker.config
        self._outbox = outbox
        self._spawn = spawn
        self._is_own = is_trusted
        self._login = None if broker.doors is None or is_trusted else Login(broker.doors, common_name)
        guard = self._guard = Guard(broker.access, ClientFacts(address))
        self._answers = Answers(self.flow, outbox, spawn, address, broker.arrivals)
        kept = broker.kept_properties.of_connection()
        self._producers = ConnectionProducers(broker, self._answers, self.flow, guard, kept)
        self.consumers = ConnectionConsumers(broker, self._answers, self.flow, guard, kept)
        self._watches = ConnectionWatches(broker, self._answers, self.flow, guard, outbox, spawn)
        lookups = Lookups(broker, self._answers, guard)
        self._steps: Generator[None, None, None] | None = None
        """What is left of a command that takes more than a turn."""
        # In the order of _ANSWERS, _PRODUCERS, _CONSUMERS, _LOOKUPS, _WATCHES.
        self._parts = (self._answers, self._producers, self.consumers, lookups, self._watches)

    @property
    def work_name(self) -> str:
        """How the watch over the loop names this connection."""
        return f"binary client {self.address}, {self._client.caller.work_name}"

    @property
    def source(self) -> str:
        """Whose share of the server it takes."""
        return self._client.caller.source(self.address)

    @property
    def _client(self) -> ClientFacts:
        return self._guard.client

    @_client.setter
    def _client(self, client: ClientFacts) -> None:
        self._guard.client = client

    # -------------------------------------------------------------------------------- in

    def on_frames(self, frames: list[memoryview], is_over: Callable[[], bool] = lambda: False) -> int:
        """Work on the frames of one chunk. Returns for how many that was done; the others have to wait until reading is
        resumed, or for another turn of the loop where *is_over* says after a command that this one is over.

        Raises MalformedFrame if the connection has to end.
        """
        flow, producers = self.flow, self._producers
        try:
            if self._steps is not None and not self._go_on(is_over):
                return 0
            for index, frame in enumerate(frames):
                if self.state is State.CONNECTED:
                    if flow.is_paused:
                        return index
                    send = parse_send(frame)
                    if send is not None:
                        producers.on_send(send)
                        continue
                    if producers.run:
                        producers.publish_run()
                    flow.on_command(len(frame))
                elif self.state is State.CLOSED:
                    break
                self._on_command(frame)
                if (self._steps is not None and not self._go_on(is_over)) or is_over():
                    return index + 1
            return len(frames)
        finally:
            producers.end_chunk()

    @property
    def is_busy(self) -> bool:
        """Whether a command is not done: `on_frames` goes on with it, also without frames."""
        return self._steps is not None

    def _go_on(self, is_over: Callable[[], bool]) -> bool:
        """Go on with the command that takes more than a turn; whether it is done."""
        while self._steps is not None:
            if next(self._steps, self) is self:  # it has come to its end
                self._steps = None
            elif is_over():
                return False
        return True

    def _on_command(self, frame: memoryview) -> None:
        """Hand a command to the part of the connection that it is for, if the client may send it now. Raises
        MalformedFrame."""
        command, entry = parse_frame(frame)
        kind = command.type
        if self.state is State.START:
            if kind == _T.PING:  # by other brokers, which ask whether this one lives
                self._answers.on_ping(command.ping)
                return
            if kind != _T.CONNECT:
                raise MalformedFrame(f"{_T.Type.Name(kind)} before CONNECT")
            self._on_connect(command.connect)
            return
        if self.state is State.AUTHENTICATING and kind not in (_T.PING, _T.PONG):
            raise MalformedFrame(f"{_T.Type.Name(kind)} before CONNECTED")
        if kind not in _TAKEN or entry is not None:
            raise MalformedFrame(f"{_T.Type.Name(kind)} is not what a client sends now")
        body = getattr(command, BODY_OF_TYPE[kind])
        handler = _HANDLERS.get(kind)
        if handler is not None:
            part, handle = handler
            self._steps = handle(self._parts[part], body)
        else:
            assert kind == _T.AUTH_RESPONSE
            self._on_auth_response(body)

    def _on_connect(self, connect: wire.CommandConnect) -> None:
        """Welcome the client at once where nobody has to authenticate, and else when its login has succeeded."""
        # A client that goes through a proxy also names the broker it wants. That is this one: nothing to check.
        assert self.state is State.START
        login = self._login
        if login is None:
            self._welcome(connect, TRUSTED)
            return
        self.state = State.AUTHENTICATING

        async def work() -> None:
            try:
                caller = await login.connect(connect, self.address)
            except BrokerError as error:
                self._turn_away(error)
                return
            if self.state is State.AUTHENTICATING:
                self._welcome(connect, caller)

        self._spawn(work(), "authentication")

    def _turn_away(self, error: BrokerError) -> None:
        """The client is not who it says, or says nothing: tell it, and close."""
        if self.state is not State.CLOSED:
            self._outbox.write(error_frame(NO_REQUEST, error.code, str(error)))
            self._outbox.close()

    def _on_auth_response(self, response: wire.CommandAuthResponse) -> None:
        """The client renews its credentials, as it was asked to; if they are refused, it is disconnected."""
        login = self._login
        if login is None:
            raise MalformedFrame("AUTH_RESPONSE where nobody is authenticated")

        async def work() -> None:
            try:
                await login.renew(response, self.address)
            except BrokerError as error:
                self._turn_away(error)

        self._spawn(work(), "renewed authentication")

    def check_login(self) -> str | None:
        """Ask the client for new credentials if its own have expired. Returns why it has to be closed, or None."""
        if self._login is None or self.state is not State.CONNECTED:
            return None
        outcome = self._login.check()
        if isinstance(outcome, bytes):
            self.flow.write(outcome)
            return None
        return outcome

    def _welcome(self, connect: wire.CommandConnect, caller: Caller) -> None:
        """The client is admitted: answer CONNECTED with what both sides can do."""
        self.state = State.CONNECTED
        version = min(PROTOCOL_VERSION, connect.protocol_version)
        self._client = facts_of(
            connect,
            self.address,
            version,
            keeps_broker_metadata=(
                self._config.expose_entry_metadata
                and connect.feature_flags.supports_broker_entry_metadata
                and version >= BROKER_METADATA_VERSION
            ),
            caller=caller,
        )
        if not self._is_own:
            self._answers.source = caller.source(self.address)
        has_watches = self._config.evaluates_patterns and self._config.watches_topic_lists
        self.flow.write(
            command(
                _T.CONNECTED,
                server_version=SERVER_VERSION,
                protocol_version=version,
                max_message_size=self._config.max_message_bytes,
                feature_flags=wire.FeatureFlags(
                    supports_topic_watchers=has_watches,
                    supports_topic_watcher_reconcile=has_watches,
                    supports_get_partitioned_metadata_without_auto_creation=True,
                ),
            )
        )

    @property
    def is_admitted(self) -> bool:
        """Whether the handshake is done."""
        return self.state is not State.START and self.state is not State.AUTHENTICATING

    def on_lost(self) -> Generator[None, None, None]:
        """The connection is gone: so are its producers and consumers, when the steps that are returned are done."""
        self.state = State.CLOSED
        self._steps = None
        self.flow.on_lost(self)
        self._watches.on_lost()
        return self._leave(self._producers.on_lost(), self.consumers.on_lost())

    @staticmethod
    def _leave(*parts: Generator[None, None, None]) -> Generator[None, None, None]:
        for part in parts:
            yield from part

    def on_flushed(self, unsent_bytes: int) -> None:
        """The socket has taken what was written, but for *unsent_bytes*."""
        flow = self.flow
        had_room = flow.has_room_to_read
        flow.count_unsent(unsent_bytes, self)
        if not had_room and flow.has_room_to_read:
            self.consumers.pump()
        if flow.is_paused or unsent_bytes > OUTBOX_HIGH_BYTES:
            flow.throttle()

    def recount(self) -> None:
        """Count anew what the client has not taken; the socket reports nothing while it drains."""
        self.on_flushed(self._outbox.unsent_bytes)


_TRANSACTION_REQUESTS: Final = (
    _T.TC_CLIENT_CONNECT_REQUEST,
    _T.NEW_TXN,
    _T.ADD_PARTITION_TO_TXN,
    _T.ADD_SUBSCRIPTION_TO_TXN,
    _T.END_TXN,
    _T.END_TXN_ON_PARTITION,
    _T.END_TXN_ON_SUBSCRIPTION,
)

_SCALABLE_REQUESTS: Final = (
    _T.SCALABLE_TOPIC_LOOKUP,
    _T.SCALABLE_TOPIC_SUBSCRIBE,
    _T.SCALABLE_TOPIC_UNSUBSCRIBE,
    _T.WATCH_SCALABLE_TOPICS,
    _T.WATCH_TC_ASSIGNMENTS,
)
_SCALABLE_ENDS: Final = (_T.SCALABLE_TOPIC_CLOSE, _T.WATCH_SCALABLE_TOPICS_CLOSE, _T.WATCH_TC_ASSIGNMENTS_CLOSE)

_ANSWERS, _PRODUCERS, _CONSUMERS, _LOOKUPS, _WATCHES = range(5)

# Which part takes a command, and how. One table for all connections: a dict of bound methods would cost each 4 KB.
# What a command leaves to be done in steps is returned.
_HANDLERS: Final[Mapping[int, tuple[int, Callable[[Any, Any], Generator[None, None, None] | None]]]] = {
    _T.PING: (_ANSWERS, Answers.on_ping),
    _T.PONG: (_ANSWERS, Answers.ignore),
    _T.LOOKUP: (_LOOKUPS, Lookups.on_lookup),
    _T.PARTITIONED_METADATA: (_LOOKUPS, Lookups.on_partitions),
    _T.GET_TOPICS_OF_NAMESPACE: (_LOOKUPS, Lookups.on_topics_of_namespace),
    _T.PRODUCER: (_PRODUCERS, ConnectionProducers.on_producer),
    _T.CLOSE_PRODUCER: (_PRODUCERS, ConnectionProducers.on_close_producer),
    _T.SUBSCRIBE: (_CONSUMERS, ConnectionConsumers.on_subscribe),
    _T.FLOW: (_CONSUMERS, ConnectionConsumers.on_flow),
    _T.ACK: (_CONSUMERS, ConnectionConsumers.on_ack),
    _T.REDELIVER_UNACKNOWLEDGED_MESSAGES: (_CONSUMERS, ConnectionConsumers.on_redeliver),
    _T.UNSUBSCRIBE: (_CONSUMERS, ConnectionConsumers.on_unsubscribe),
    _T.CLOSE_CONSUMER: (_CONSUMERS, ConnectionConsumers.on_close_consumer),
    _T.SEEK: (_CONSUMERS, ConnectionConsumers.on_seek),
    _T.GET_LAST_MESSAGE_ID: (_CONSUMERS, ConnectionConsumers.on_last_message_id),
    _T.CONSUMER_STATS: (_CONSUMERS, ConnectionConsumers.on_consumer_stats),
    _T.GET_SCHEMA: (_LOOKUPS, Lookups.on_get_schema),
    _T.GET_OR_CREATE_SCHEMA: (_LOOKUPS, Lookups.on_get_or_create_schema),
    _T.WATCH_TOPIC_LIST: (_WATCHES, ConnectionWatches.on_watch),
    _T.WATCH_TOPIC_LIST_CLOSE: (_WATCHES, ConnectionWatches.on_close),
    **dict.fromkeys(_TRANSACTION_REQUESTS, (_ANSWERS, Answers.refuse_transactions)),
    **dict.fromkeys(_SCALABLE_REQUESTS, (_ANSWERS, Answers.refuse_scalable)),
    **dict.fromkeys(_SCALABLE_ENDS, (_ANSWERS, Answers.ignore)),
}

# All that a client may send once it is connected, but SEND.
_TAKEN: Final = frozenset({*_HANDLERS, _T.AUTH_RESPONSE})
